"""`heed distil` from the command line; what it computes is tested in tests/training/test_distillation.py."""

from pathlib import Path

from tests.cli.command import heed


def test_distil_trains_a_student_and_resumes(train_options: list[str], tmp_path: Path) -> None:
    teacher, student = f"{tmp_path}/teacher", f"{tmp_path}/student"
    steps = ["--set", "training.max_steps=4"]
    assert heed("train", *train_options, *steps, "--out", teacher).returncode == 0
    small = ["--set", "model.d_model=16", "--set", "model.heads=2", "--set", "model.d_ff=16", *steps]
    command = ["distil", teacher, "--out", student, "--preset", "tiny", *small]
    distilled = heed(*command)
    assert distilled.returncode == 0, distilled.stderr
    assert f"translating the sources with {teacher}, backend" in distilled.stderr
    assert "translations left out because they reached the length limit: " in distilled.stderr
    assert f"done after step 4: the model of step 4 is in {student}" in distilled.stderr
    again = heed(*command)
    assert again.returncode == 2
    assert f"error: {student} already holds a distillation: resume it" in again.stderr
    resumed = heed(*command[:-1], "training.max_steps=6", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "translating the sources" not in resumed.stderr
    assert "done after step 6" in resumed.stderr


def test_a_teacher_that_is_no_run_is_one_error_line(tmp_path: Path) -> None:
    refused = heed("distil", f"{tmp_path}/nothing", "--out", f"{tmp_path}/student")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: {tmp_path}/nothing has no run.json, which names the training text")
    assert not (tmp_path / "student").exists()
