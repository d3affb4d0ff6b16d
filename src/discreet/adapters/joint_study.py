"""The model or the evaluation that a study file declares."""

from __future__ import annotations

from discreet.adapters.joint_evaluation import KIND, JointEvaluation
from discreet.adapters.joint_model import JointModel
from discreet.adapters.joint_recipe import JointRecipe
from discreet.parties.study import Study

Joint = JointModel | JointEvaluation | JointRecipe


def joint_of(study: Study) -> Joint:
    """Return the model or evaluation of a study; everything that its file declares is checked."""
    if study.algorithm == "recipe":
        return JointRecipe.of(study)
    return JointEvaluation.of(study) if study.model["kind"] == KIND else JointModel.of(study)
