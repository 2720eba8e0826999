// The digest of a view: SHA-256 of its canonical JSON (RFC 8785) without the words and times that follow from when facts arrived.
//
// It sorts names by UTF-16 as the standard asks, and holds for whole numbers and names that are no numbers, as views have them.
import { createHash } from "node:crypto";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const sorted = (entries) => Object.fromEntries(entries.sort(([one], [other]) => (one < other ? -1 : 1)));

export const canonical = (value) => JSON.stringify(value, (_, it) => (isObject(it) ? sorted(Object.entries(it)) : it));

const signed = ({ asOf, changedAt, deploymentName, digest, lastHeardAt, message, ...content }) => content;

export function contentDigest(view) {
  const content = signed(view);
  // The parts of a view that a person defined have words and times of their own.
  for (const name of ["groups", "omitted", "without"].filter((name) => name in content)) {
    content[name] = Array.isArray(content[name]) ? content[name].map(signed) : signed(content[name]);
  }
  return `sha256:${createHash("sha256").update(canonical(content)).digest("hex")}`;
}
