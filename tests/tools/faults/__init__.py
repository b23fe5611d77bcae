"""The fault suite: real processes, real faults, and a checker over what happened. `bin/faults --list` shows it all."""
