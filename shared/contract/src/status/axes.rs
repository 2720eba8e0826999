//! The values of EMCO's two axes, of kstatus, and of ResourceGroup's three axes.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$say:meta])* $value:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum $name { $($(#[$say])* $value),+ }

        impl $name {
            /// All values, the worst first.
            pub const ALL: [Self; [$(Self::$value),+].len()] = [$(Self::$value),+];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => stringify!($value)),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(
    /// The delivery of a component, in EMCO's words; in a roll-up the first of these values that any component has.
    Deployed {
        /// The device refused the deployment as a whole.
        Failed,
        /// Published; the device has not reported for it yet.
        Pending,
        /// The device has reported for it, whether it is healthy or not.
        Applied,
        /// It is to be removed, and is still there.
        Deleting,
        /// It is removed.
        Deleted,
        /// In a roll-up: nothing passed the filters.
        Empty,
    }
);
words!(
    /// The observed state of a component, in EMCO's words and one more (`Unknown`). A component is ready only by a fresh report
    /// that is known to be the last.
    Ready {
        /// Reported, and not ready.
        NotReady,
        /// Expected, and not reported for the current target.
        NotPresent,
        /// The device is silent, or newer reports of it are missing.
        Unknown,
        /// Ready by a report that is fresh and known to be the last.
        Ready,
        /// In a roll-up: nothing that should run passed the filters.
        Empty,
    }
);
words!(
    /// kstatus. Never `Current` if the device is silent or newer reports are missing.
    KStatus {
        /// Failed for the current target.
        Failed,
        /// The device is silent, or newer reports of it are missing.
        Unknown,
        /// In progress.
        InProgress,
        /// It should not run, and is still there.
        Terminating,
        /// It should run, and no part of it is there yet.
        NotFound,
        /// It is as desired.
        Current,
    }
);
words!(
    /// The intended action, in ResourceGroup's words.
    Strategy {
        /// It should run.
        Apply,
        /// It should be removed.
        Delete,
    }
);
words!(
    /// Whether the device has carried out the action.
    Actuation {
        /// Not yet, by the known reports.
        Pending,
        /// It has.
        Succeeded,
        /// It refused.
        Failed,
    }
);
words!(
    /// Whether the action has its result.
    Reconcile {
        /// Not yet, by the known reports.
        Pending,
        /// It has.
        Succeeded,
        /// There was nothing to wait for, because actuation failed.
        Skipped,
        /// The deadline passed.
        Timeout,
        /// It failed.
        Failed,
    }
);
