"""scikit-learn's own contract, run to the letter."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from heatmover.embedding.estimator import DiffusionEMD

# A measure without mass cannot be normalized: heatmover refuses it.
EMPTY_ROW = "the check's table has a row of zeros, which is no measure and is refused"

# Checks that fail by design, each with its reason.
EXPECTED_FAILURES = {
    "check_estimators_dtypes": EMPTY_ROW,
    "check_estimator_sparse_tag": EMPTY_ROW,
    "check_estimator_sparse_array": EMPTY_ROW,
    "check_estimator_sparse_matrix": EMPTY_ROW,
    "check_fit2d_1feature": EMPTY_ROW,
}


@parametrize_with_checks(
    # Without a graph the columns are bins in a row, whatever their number. The checks' tables do not sum to one.
    [DiffusionEMD(normalize=True), DiffusionEMD(normalize=True, method="exact", norm="increments", max_scale=3)],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
