"""The baseline that only forgets: fresh windows of the trained length."""

from ropewalk.methods.method import DROPS_TOKENS, Look, Method

METHOD = Method(
    name="crop",
    order=160,
    changes="Nothing: reads windows of the trained length, and forgets what is older.",
    costs="each window is read again from its beginning",
    not_in_config=DROPS_TOKENS,
    crops=True,
    equal_below=lambda reach: reach.trained,
    forgets=True,
    look=Look("#d55e00", ":", "."),
)
