"""
A process that measures: one for each number of threads, as a run has one of its own.

In one process the pools of two numbers of threads and readers disturb each other.  A worker makes its object
once, answers calls of its methods until the pipe is closed, and ends when the process that started it ends, however
that was.  It sleeps while it is not asked.
"""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

from moeplan.errors import InputError

Fields = tuple[str, str, str, str]  # of an InputError
END_S = 0.5  # a worker that is told to end has so long before it is ended; it holds nothing that would be left


class Worker:
    """A process that holds one object and calls its methods.  Use it as a context manager."""

    def __init__(self, make: Callable[..., AbstractContextManager[Any]], *arguments: object) -> None:
        """make, a function of a module, is called with the arguments there; the first call waits until it is done."""
        context = multiprocessing.get_context("spawn")  # a fork would bring this process's threads half alive
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self._process.start()
        other.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, *arguments: object) -> Any:
        """What the method returned.  Raises the InputError that it raised, or one where the process has ended."""
        try:
            self._pipe.send((method, arguments))
            failure, result = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(END_S)
            got = f"exit status {self._process.exitcode}"
            raise InputError("a process of the probe", "must live to its end", got, "is there enough memory?") from None
        if failure is not None:
            raise InputError(*failure)
        return result

    def close(self) -> None:
        """End the process.  May be called twice."""
        self._pipe.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(pipe: Connection, make: Callable[..., AbstractContextManager[Any]], arguments: tuple[object, ...]) -> None:
    """Answers until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starter is told as well, and closes the pipe
    try:
        try:
            with make(*arguments) as measured:
                while True:
                    method, given = pipe.recv()
                    pipe.send(_answer(measured, method, given))
        except InputError as error:  # what it holds could not be made
            pipe.recv()
            pipe.send((_fields(error), None))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _answer(measured: object, method: str, given: tuple[object, ...]) -> tuple[Fields | None, object]:
    try:
        return None, getattr(measured, method)(*given)
    except InputError as error:
        return _fields(error), None


def _fields(error: InputError) -> Fields:
    return error.where, error.must, error.got, error.advice
