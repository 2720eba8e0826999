// The digest of a view: SHA-256 of its canonical JSON (RFC 8785) without the words and times that follow from when facts arrived.
//
// It sorts names by UTF-16 as the standard asks, and holds for whole numbers and names that are no numbers, as views have them.
import { createHash } from "node:crypto";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const sorted = (entries) => Object.fromEntries(entries.sort(([one], [other]) => (one < other ? -1 : 1)));

export const canonical = (value) => JSON.stringify(value, (_, it) => (isObject(it) ? sorted(Object.entries(it)) : it));

export function contentDigest({ asOf, changedAt, deploymentName, digest, lastHeardAt, message, ...content }) {
  return `sha256:${createHash("sha256").update(canonical(content)).digest("hex")}`;
}
