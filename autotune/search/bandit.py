"""Which strategy proposes next: credit by area under the curve, and a share for each.

Every use of a strategy is noted with how good its candidate was; its credit is the mean of those
grades weighted by how recent they are (the area under the curve of grades, as OpenTuner has it).
While nothing is won all credits sink to nothing, and each is then used as often as its share says:
a strategy used less than that gains on the others.  Pure arithmetic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW = 24
"""How many uses of a strategy its credit looks back on."""


@dataclass(slots=True)
class Arm:
    """One strategy's account.

    Attributes:
        name: of the strategy.
        share: of the proposals, while no strategy is better than another.
        grades: of its last uses, each from 0 to 1.
        uses: in all.
        waiting: proposed, and the outcome not known yet.
    """

    name: str
    share: float
    grades: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    uses: int = 0
    waiting: int = 0

    def credit(self) -> float:
        """Recent grades weigh more; a few unseen failures come before the first."""
        weights = range(1, len(self.grades) + 1)
        area = sum(w * g for w, g in zip(weights, self.grades, strict=True))
        return area / (sum(weights) + UNSEEN)


UNSEEN = 12.0
CURIOSITY = 1.0


class Bandit:
    """Chooses among arms.

    Args:
        arms: name and share of each strategy.
    """

    def __init__(self, arms: Sequence[tuple[str, float]]) -> None:
        whole = sum(share for _, share in arms)
        self.arms = {name: Arm(name, share / whole) for name, share in arms}

    def choose(self, barred: frozenset[str]) -> Arm | None:
        """The arm of the most credit plus what it lacks of its share; of equal ones the first."""
        total = math.sqrt(sum(arm.uses + arm.waiting for arm in self.arms.values()) + 1)

        def bound(arm: Arm) -> float:
            uses = arm.uses + arm.waiting
            return arm.credit() + CURIOSITY * arm.share * total / (uses + 1)

        allowed = [arm for arm in self.arms.values() if arm.name not in barred]
        return max(allowed, key=bound) if allowed else None

    def grade(self, name: str, grade: float) -> None:
        """Note how good a proposal of an arm was."""
        arm = self.arms[name]
        arm.waiting -= 1
        arm.uses += 1
        arm.grades.append(grade)

    def forget(self, name: str) -> None:
        """A proposal of an arm was not tried."""
        self.arms[name].waiting -= 1
