"""How sure a rate is that was counted in a few plays: the Wilson score interval."""

from math import sqrt

Z_95 = 1.959963984540054
"""Of the normal distribution 95 % lie within so many standard deviations."""


def wilson(count: int, of: int, z: float = Z_95) -> tuple[float, float]:
    """The rates, from 0 to 1, at which ``count`` of ``of`` would not be surprising. Without plays that is any rate.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927. It also holds for few
    plays and for rates near 0 and 1, where the usual interval has no width.
    """
    if not 0 <= count <= of:
        raise ValueError(f"{count} of {of} is not a count")
    if not of:
        return 0.0, 1.0
    share, weight = count / of, z * z / of
    middle = share + weight / 2
    spread = sqrt(weight * share * (1 - share) + weight * weight / 4)
    low, high = (middle - spread) / (1 + weight), (middle + spread) / (1 + weight)
    return (0.0 if count == 0 else low), (1.0 if count == of else high)
