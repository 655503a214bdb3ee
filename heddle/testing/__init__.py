"""Stand-ins for systems that a test cannot have, for anybody's tests.

``MockSGLang`` is a server that speaks SGLang's HTTP and has its semantics: queues, slots, preemption, prefix
cache, aborts, pauses, weight versions. Held to a real server by the conformance tests of ``tests/sglang``.
"""

from heddle.testing.mock_sglang.faults import MockFaults
from heddle.testing.mock_sglang.server import MockSGLang
from heddle.testing.mock_sglang.settings import MockSettings, MockTiming
from heddle.testing.mock_sglang.store import SharedStore

__all__ = ["MockFaults", "MockSGLang", "MockSettings", "MockTiming", "SharedStore"]
