"""Names of what the suite's tasks can be asked for: the scenarios' side, which has no Django set up.

`test_names.py` compares them with the tasks themselves.
"""

from typing import Final

DEATHS: Final = ("exit 0", "exit 1", "abort", "kill", "stack")
ERRORS: Final = (
    *("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "StopIteration"),
    *("hostile", "cycle", "group", "large", "nul", "surrogate", "recursion"),
)
RESULTS: Final = (*("set", "nan", "infinity", "nul", "surrogate", "bytes", "endless", "large", "digits", "object"),)
ODD_BACKOFFS: Final = {1: "1e308", 2: "nan", 3: "-5", 4: "'soon'", 5: "raises", 6: "infinity"}
SPOILED: Final = ("closed", "killed", "open", "aborted", "no autocommit")
STATEMENTS: Final = (
    *("search_path", "statement_timeout", "read only", "role", "temporary table", "advisory lock"),
    *("listen", "cursor", "set_config", "prepared"),
)
REFUSED: Final = (*("nan", "infinity", "nul", "nul in a key", "surrogate", "bytes", "set", "digits", "depth", "size"),)
FIXED: Final = "nodes fixed"
"""The file in the run's directory with which no node of a workflow fails any more."""
