"""Errors a user can cause, told apart from faults of ours."""


class BadInput(ValueError):
    """Wrong input: one clear sentence naming the key, the value and what is allowed.

    The command line prints the sentence and exits with 2; nothing has been written.
    """


class RunFailed(RuntimeError):
    """A run that could not go on. The command line exits with 1."""


class FetchFailed(RunFailed):
    """A data set that could not be fetched: one clear sentence, and no half file left."""
