"""The link goes silent. Bytes in the chosen directions vanish, and connections stay open.

The end of the fault closes the connections that lived through it (Toxiproxy #168), as a real network often does too.
"""

from chaos.faults.timed import silenced

begin = silenced
