"""Parts of statements that compare the error messages of attempts.

The filters of bulk acts (`sql.bulk_acts`) and the searches of operators (`stats.incident_groups`) use them, so a
message means the same jobs in both. Messages of one kind differ in numbers and ids: `order 4711 not found` and `order
4712 not found`. Their shape, `order # not found`, is the same.

Each part reads the column `error` of an execution, and the parameter `message`.
"""

from typing import Final

# A filter that begins with this means the whole shape of a message. Other filters are a part of the message.
WHOLE_MESSAGE: Final = "="

# The first line of a message, with `#` for each number, hexadecimal id and UUID. A message is compared by its first 200
# characters.
MESSAGE_SHAPE: Final = r"""regexp_replace(
            left(split_part(error, E'\n', 1), 200), '\m(0x)?[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*\M|[0-9]+', '#', 'g'
        )"""

# Whether a message meets a filter. Capital letters do not matter in a part of a message.
MEETS_MESSAGE: Final = (
    """CASE
            WHEN %(message)s::text IS NULL THEN true
            WHEN left(%(message)s::text, 1) = '""" + WHOLE_MESSAGE + """'
            THEN """ + MESSAGE_SHAPE + """ = substr(%(message)s::text, 2)
            ELSE strpos(lower(left(error, 10000)), lower(%(message)s::text)) > 0
        END"""
)  # fmt: skip
