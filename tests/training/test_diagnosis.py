import math
from collections.abc import Iterable

from heed import Listener, TrainingConfig
from heed.training.diagnosis import Diagnosis
from heed.training.step_log import StepReport


def warnings(losses: Iterable[float], config: TrainingConfig | None = None) -> list[str]:
    """The warnings about a run with these training losses."""
    messages: list[str] = []

    class Recorder(Listener):
        def warning(self, message: str) -> None:
            messages.append(message)

    diagnosis = Diagnosis(config or TrainingConfig(schedule="cosine", learning_rate=0.01), Recorder())
    for step, loss in enumerate(losses, start=1):
        diagnosis.step(StepReport(step, 0, loss, 0.01, 100, 0.1))
    return messages


def falling(steps: int) -> list[float]:
    return [2 + 6 * math.exp(-step / 300) + 0.3 * math.sin(step) for step in range(steps)]


def test_a_falling_loss_is_no_problem_even_if_it_is_noisy() -> None:
    assert warnings(falling(5000)) == []


def test_a_rising_loss_is_reported_once_with_the_learning_rate() -> None:
    (message,) = warnings([*falling(1500), *(2 + step / 200 for step in range(1500))])
    assert message.startswith("the training loss rose from 2.0")
    assert message.endswith("the learning rate is probably too high; training.learning_rate is 0.01")


def test_a_loss_that_stands_still_is_reported_with_the_factor_of_the_paper_schedule() -> None:
    (message,) = warnings([7.0] * 3000, TrainingConfig(learning_rate_factor=0.001))
    assert message == (
        "the training loss hardly changes (from 7.00 to 7.00 in 1,000 steps): the learning rate is probably far too "
        "low, or too high; training.learning_rate_factor is 0.001"
    )


def test_a_loss_that_has_converged_is_no_problem() -> None:
    assert warnings([*falling(900), *[0.01] * 3000]) == []


def test_skipped_steps_do_not_count() -> None:
    assert warnings([math.nan if step % 50 == 0 else loss for step, loss in enumerate(falling(2000))]) == []
