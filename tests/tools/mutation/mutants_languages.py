"""Mutants of the console in other languages, and of the English that commands and documents keep.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LANGUAGES = of_tests(
    ("tests/admin/test_languages.py",),
    Mutant(
        "commands speak the language of the settings",
        'nullcontext() if runs_tasks else translation.override("en")',
        "nullcontext()",
        inside="Command.handle",
    ),
    Mutant("`run` runs tasks in English", "nullcontext() if runs_tasks else ", "", inside="Command.handle"),
    Mutant(
        "documents are in the language of the browser",
        'translation.override("en")',
        "translation.override(translation.get_language())",
        inside="page._json",
    ),
    Mutant(
        "histories are in the language of who acts",
        'translation.override("en")',
        "translation.override(translation.get_language())",
        inside="log_change",
    ),
    Mutant("numbers are cut and not rounded", 'f"{value:.{decimals}f}", decimals', "value, decimals", inside="number"),
    Mutant("an outcome is shown as the row has it", "WORDS.get(str(word), ", "str(", inside="word_text"),
    Mutant(
        "cron expressions have English words in all languages",
        'if (get_language() or "en").startswith("en") else expression',
        "",
        inside="expression_text",
    ),
)
