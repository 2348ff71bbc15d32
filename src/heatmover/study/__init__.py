"""Compare samples of a cohort, test metadata; for users, `atlas`, front ends; reads cohorts, writes on request."""

from heatmover.study.batches import Alignment, align_batches
from heatmover.study.cell_calls import CellCalls
from heatmover.study.cell_types import SampleComposition, annotate, cluster_cells
from heatmover.study.comparers import Compared, Comparer, InMemory
from heatmover.study.comparison import Comparison, Intervals, LandmarkAgreement, compare, landmark_agreement
from heatmover.study.contrasts import CellContrast, CellContrasts, CellType, Omnibus, contrast_cells, contrast_variable
from heatmover.study.design_check import DesignRemark, check_design
from heatmover.study.examination import Finding, Pairs, examine
from heatmover.study.parameters import StudyParameters
from heatmover.study.record import StudyRecord
from heatmover.study.study import Study, study_cohort, study_comparison

__all__ = [
    "Alignment",
    "CellCalls",
    "CellContrast",
    "CellContrasts",
    "CellType",
    "Compared",
    "Comparer",
    "Comparison",
    "DesignRemark",
    "Finding",
    "InMemory",
    "Intervals",
    "LandmarkAgreement",
    "Omnibus",
    "Pairs",
    "SampleComposition",
    "Study",
    "StudyParameters",
    "StudyRecord",
    "align_batches",
    "annotate",
    "check_design",
    "cluster_cells",
    "compare",
    "contrast_cells",
    "contrast_variable",
    "examine",
    "landmark_agreement",
    "study_cohort",
    "study_comparison",
]


def __dir__() -> list[str]:
    return sorted(__all__)
