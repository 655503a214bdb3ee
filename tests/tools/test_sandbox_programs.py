"""What ordinary programs get from the sandbox: real processes, in every mode that works on this machine."""

from __future__ import annotations

import pytest
from sandbox_tools import run

from heddle.tools.ports import ToolOutcome
from heddle.tools.sandbox import PythonSandbox


async def test_output_of_a_program(sandbox: PythonSandbox) -> None:
    """Standard output and error come back merged in the order of the lines, with the time split."""
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')"

    result = await run(sandbox, code)

    assert (result.output, result.outcome, result.ok) == ("a\nb\nc\n", ToolOutcome.OK, True)
    assert result.cold_start_s > 0
    assert result.run_s > 0
    assert result.extra["exit_code"] == 0


async def test_the_program_is_main(sandbox: PythonSandbox) -> None:
    """Classes can be pickled, ``exit`` exists, non-daemon threads finish, atexit handlers run."""
    code = (
        "import atexit, pickle, threading, time\n"
        "class A: pass\n"
        "assert __name__ == '__main__' and type(pickle.loads(pickle.dumps(A()))) is A\n"
        "atexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "exit(0)"
    )

    result = await run(sandbox, code)

    assert (result.output, result.outcome) == ("thread\nlast\n", ToolOutcome.OK)


async def test_the_standard_library_is_there(sandbox: PythonSandbox) -> None:
    """Lazy imports, subprocesses of the system and worker processes work."""
    code = (
        "import decimal, encodings.idna, hashlib, math, multiprocessing, sqlite3, statistics, subprocess\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    print(pool.map(math.factorial, [3, 4]))\n"
        "print(subprocess.run(['echo', 'sub'], stdin=-3, capture_output=True, text=True).stdout)\n"
        "print(len(open('/dev/urandom', 'rb').read(3)), open('/dev/null', 'w').write('x'))"
    )

    result = await run(sandbox, code)

    assert result.output == "[6, 24]\nsub\n\n3 1\n"


async def test_a_syntax_error(sandbox: PythonSandbox) -> None:
    """A program that does not compile is an observation with the offending line."""
    result = await run(sandbox, "x = = 1")

    assert ToolOutcome.ERROR is result.outcome
    assert "x = = 1" in result.output
    assert "SyntaxError" in result.output


async def test_an_exception(sandbox: PythonSandbox) -> None:
    """The traceback shows the program's lines and none of the sandbox's."""
    result = await run(sandbox, "def f():\n    return 1 / 0\nf()")

    assert ToolOutcome.ERROR is result.outcome
    expected = (
        'Traceback (most recent call last):\n  File "<code>", line 3, in <module>\n    f()\n'
        '  File "<code>", line 2, in f\n    return 1 / 0\n'
    )
    assert result.output.startswith(expected)
    assert result.output.endswith("ZeroDivisionError: division by zero\n")
    assert "inside" not in result.output


async def test_an_exit_code(sandbox: PythonSandbox) -> None:
    """``sys.exit`` with a message prints it and is an error."""
    result = await run(sandbox, "import sys; sys.exit('no luck')")

    assert (result.output, result.outcome, result.extra["exit_code"]) == ("no luck\n", ToolOutcome.ERROR, 1)


async def test_a_signal(sandbox: PythonSandbox) -> None:
    """A program that a signal ends was killed, and the model is told which."""
    result = await run(sandbox, "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGSEGV)")

    assert (result.output, result.outcome) == ("x\n[ended by SIGSEGV]", ToolOutcome.KILLED)


async def test_stdin_and_files(sandbox: PythonSandbox) -> None:
    """Standard input is the given text; files lie in the working directory, which is empty otherwise."""
    code = "import os\nprint(input(), sorted(os.listdir('.')), open('d/e.txt').read())"

    given = await run(sandbox, code, stdin="line\n", files={"d/e.txt": "täxt", "a.py": "A = 1"})
    empty = await run(sandbox, "import os, sys; print(os.listdir('.'), repr(sys.stdin.read()))")

    assert given.output == "line ['a.py', 'd'] täxt\n"
    assert empty.output == "[] ''\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import os\nif not os.fork():\n    while True: pass\nos.wait()",
    ],
    ids=["busy", "asleep", "busy child"],
)
async def test_the_wall_clock(sandbox: PythonSandbox, code: str) -> None:
    """At the deadline the program is gone, busy or asleep, and what it printed is kept."""
    result = await run(sandbox, f"print('before')\n{code}", timeout_s=0.5)

    assert ToolOutcome.TIMED_OUT is result.outcome
    assert result.output == "before\n[ended: time limit of 0.5 s]"
