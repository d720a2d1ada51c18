"""What is true of each partition of a coordinator's topic that this node leads, whatever the partition keeps."""

from reference_broker.replication.partitions import Partition


class LedPartition:
    """It is loaded, then served, and closed when another node leads it. A log that cannot be read is refused."""

    def __init__(self, led: Partition) -> None:
        self.led = led
        self.index = led.index
        self.is_loaded = False
        """What it keeps is served."""
        self.is_refused = False
        """Its log cannot be read, so that nobody knows what it keeps."""
        self.is_led = True
        """No other node has taken over, as far as this one knows."""
        self.loaded_end = 0
        """The end of the log when it was loaded. The former coordinator may have acknowledged what lies below it."""

    def close(self) -> None:
        """Another node leads the partition now. Nothing here is true any more."""
        self.is_led = self.is_loaded = False

    def validate(self) -> None:
        """Asserts what is always true of it. It is dear, so only tests and the simulator ask."""
