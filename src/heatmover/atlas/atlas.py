"""Build, save, load, verify `Atlas` (reference samples with a model), map new samples; for users, `tl`, `cli`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.handed import handed
from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import DAMAGED, Record, Samples, Store, Table
from heatmover._base.types import Bool, Float64, FloatArray, Int64, IntArray
from heatmover._base.validation import check_integer, check_matrix, check_memory, check_random_state, sample_columns
from heatmover._base.words import counted, find, listed, percent, quoted, quoted_path
from heatmover.atlas.coverage import RANKED, CellDraw, Coverage, Support, hold_out, support_bytes
from heatmover.atlas.features import Features, Ranges, check_names, check_unmoved, code_labels, raw_blocks
from heatmover.atlas.index.index import MeasureIndex, fingerprint
from heatmover.atlas.prediction import Prediction, may_vote, predict
from heatmover.attribution import explain
from heatmover.cohort import Cohort
from heatmover.embedding import pairwise_distances
from heatmover.embedding.estimator import MODEL_SCHEMA, MODEL_VERSION, DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Landmarks
from heatmover.graphs.distinct import distinct_points
from heatmover.measures import Measures, measures_from_weights
from heatmover.statistics.manifold import classical_scaling
from heatmover.statistics.noise import uncertainty
from heatmover.study.comparison import check_model, check_units, fit_samples, place_landmarks
from heatmover.study.parameters import StudyParameters, Units
from heatmover.study.scale.out_of_core import InPieces, Request, cells_counted
from heatmover.study.tables import write_table
from heatmover.transport.calibration import Curve

# Name and version of the stored format, which `docs/atlas_format.md` describes.
ATLAS_SCHEMA, ATLAS_VERSION = "heatmover-atlas", 3
# Default number of nearest reference samples that are listed, and that vote in predictions.
NEIGHBORS = 10

SearchMethod = Literal["auto", "exact", "approximate"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Atlas(ReadOnlyArrays):
    """Reference samples with a fitted model; `build_atlas` makes an atlas, and `heatmover.load` reads a saved atlas.

    Attributes
    ----------
    names
        Names of the reference samples.
    counts
        ``(n_samples, n_nodes)``, CSR: number of cells of each sample at each node.
    embedding
        ``(n_samples, n_features)``: embedding of the reference samples.
    variables
        Metadata of the reference samples by name; None where a value is missing.
    model
        `DiffusionEMD` fitted on the graph of the nodes.
    nodes
        Points to which cells are assigned: landmarks, or the distinct cells of the reference.
    features
        Names of the features, their scaling and projection, and their ranges in the reference.
    support
        Reference cells with which new cells are compared to compute coverage.
    curve, ground
        Conversion from embedding distances to real units, and the name of the unit; None without units.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> atlas = hm.build_atlas(data.points, data.labels, variables={"condition": data.annotations["condition"]})
    >>> atlas
    Atlas(12 samples of 720 cells on 720 nodes, 10 features; variables: condition)
    >>> mapped = atlas.map(data.points[:90], "a mixture")
    >>> mapped.distances.shape
    (1, 12)
    """

    names: tuple[str, ...]
    counts: sp.csr_array
    embedding: FloatArray
    variables: Mapping[str, tuple[Any, ...]]
    model: DiffusionEMD
    nodes: Landmarks
    features: Features
    support: Support
    curve: Curve | None = None
    ground: str | None = None

    @cached_property
    def sizes(self) -> Int64:
        """Number of cells of each reference sample, ``(n_samples,)``."""
        return np.asarray(self.counts.sum(axis=1)).ravel().astype(np.int64)

    @cached_property
    def measures(self) -> Measures:
        """Mass of the reference samples at the nodes."""
        return measures_from_weights(self.counts, names=self.names)

    @cached_property
    def distances(self) -> Float64:
        """Distances between the reference samples, ``(n_samples, n_samples)``."""
        return self.in_units(pairwise_distances(self.embedding, n_jobs=self.model.n_jobs))

    @cached_property
    def _search(self) -> MeasureIndex:
        # This internal index has no names and no variables, because its searches need only row numbers.
        return MeasureIndex.from_embedding(self.embedding)

    def nearest(self, rows: FloatArray, k: int, method: SearchMethod) -> tuple[Float64, Int64]:
        """Return the distances and indices of the k reference samples nearest to each embedding row."""
        nearest = self._search.nearest(rows, k, method=method, n_jobs=self.model.n_jobs)
        return self.in_units(nearest.distances), nearest.rows

    def in_units(self, distances: FloatArray) -> Float64:
        """Convert embedding distances to real units, if the atlas has units."""
        values = np.asarray(distances, dtype=np.float64)
        return values if self.curve is None else self.curve(values)

    @cached_property
    def coordinates(self) -> Float64:
        """Positions of the reference samples on a map, ``(n_samples, 2)``: classical multidimensional scaling."""
        return classical_scaling(self.distances, 2)[0]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the coordinates of the nodes: feature names, or numbered principal components."""
        if self.features.projection.components is None:
            return self.features.names
        return tuple(f"component {number}" for number in range(1, self.nodes.centers.shape[1] + 1))

    def variable(self, name: str) -> tuple[Any, ...]:
        """Return the values of a variable; for an unknown name, the error suggests the most similar name."""
        return self.variables[find(name, self.variables, "a variable of the atlas")]

    @cached_property
    def index(self) -> MeasureIndex:
        """Search index of the reference samples; queries are sample names, measures on the nodes, or embedding rows.

        The index is a copy in memory, so adding samples to the index does not change the atlas. `MeasureIndex.open`
        instead opens the folder of a saved atlas, and stores the graph for approximate search in this folder.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.cohort(6, cells_per_sample=40)
        >>> atlas = hm.build_atlas(data.points, data.labels)
        >>> atlas.index.nearest("case-01", k=2).distances.shape
        (1, 2)
        """
        return MeasureIndex.from_embedding(self.embedding, names=self.names, variables=self.variables, model=self.model)

    def map(
        self,
        source: Any,
        labels: npt.ArrayLike | None = None,
        *,
        sample_key: str | None = None,
        sample_sheet: str | os.PathLike[str] | None = None,
        on_missing: Literal["refuse", "drop"] = "refuse",
        skip_unlisted: bool = False,
        n_jobs: int | None = None,
    ) -> Mapped:
        """Map new samples onto the atlas, without changing the atlas.

        Cells are scaled and projected as in the reference, and assigned to the nodes. The fitted model then embeds the
        samples. If a reference sample is mapped, its embedding is bit-identical to the stored embedding.

        Parameters
        ----------
        source
            A file or folder as in `heatmover.read_cohort`, an AnnData, or points ``(n_cells, n_features)``. Features
            are matched by name, in any order: by columns of a table or DataFrame, ``var_names``, or channels. If a
            feature is missing, an error is raised. Additional features are ignored.
        labels
            ``(n_cells,)``: sample of each cell, required for points; or one name if all points belong to one sample.
        sample_key
            Column with the sample of each cell. None: the column from which the samples of the reference were read.
        sample_sheet
            As in `heatmover.read_cohort`.
        on_missing, skip_unlisted
            As in `heatmover.read_cohort`, for files and AnnData.
        n_jobs
            Number of threads; None for all cores. Results do not depend on this number.

        Returns
        -------
        Mapped
            Distances to the reference samples, coverage and warnings; ``print`` shows a summary.
        """
        if labels is None and not hasattr(source, "dtype") and not hasattr(source, "columns"):
            cohort = self.features.open(source, sample_key, sample_sheet, on_missing, skip_unlisted)
            return self._mapped(cohort.names, raw_blocks(cohort), tuple(cohort.warnings), n_jobs)
        values = self.features.values_of(source)
        if labels is None:
            raise InvalidInputError(f"{argument('labels')}: a sample name for each point, or one name for all", "none")
        names, codes = code_labels(labels, len(values))
        return self._mapped(names, [(values, codes)], (), n_jobs)

    def _mapped(self, names: tuple[str, ...], blocks: Any, warnings: tuple[str, ...], n_jobs: int | None) -> Mapped:
        ranges = Ranges(len(self.features.names))
        shape = (len(names), self.nodes.n_landmarks)
        counts = sp.csr_array(shape)
        chances, every = [], []
        draw = self.support.draw(len(names))
        for values, codes in blocks:
            ranges.add(values)
            points = self.features.projection.apply(values)
            counts = counts + _count_at(self.nodes.assign(points, n_jobs=n_jobs), codes, shape)
            chances.append(self.support.judge(points, n_jobs))
            if draw is not None:
                draw.add(points, codes)
            every.append(codes)
        of_sample = np.concatenate(every)
        coverage = self.support.verdict(np.concatenate(chances), of_sample, len(names), draw, n_jobs)
        measures = measures_from_weights(counts, names=names)
        sizes = np.bincount(of_sample, minlength=len(names)).astype(np.int64)
        embedding = self.model.transform(measures)
        remarks = (*warnings, *self.features.remarks(ranges))
        return Mapped(names, sizes, measures, embedding, coverage, remarks, self)

    def add(
        self,
        mapped: Mapped,
        variables: Mapping[str, Sequence[Any]] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> Atlas:
        """Return an atlas with additional reference samples; nodes, model and earlier embedding rows do not change.

        Adding samples does not change the criterion for coverage, which depends only on the samples from which the
        atlas was built.

        Parameters
        ----------
        mapped
            New samples, as returned by `map` of this atlas.
        variables
            Metadata of the new samples by name. Variables that are not given are missing for these samples.
        path
            Folder of the saved atlas, to which the samples are also appended. If an error occurs, no sample is
            appended. The samples are on disk when this method returns. Only one process can write at a time; readers
            do not wait. None: add in memory only.

        Returns
        -------
        Atlas
            The larger atlas. With ``path``, it also contains samples that other processes added to the folder.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import heatmover as hm
        >>> data = hm.datasets.cohort(6, cells_per_sample=40)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "it.atlas"
        >>> atlas = hm.build_atlas(data.points, data.labels)
        >>> atlas.save(path)
        >>> len(atlas.add(atlas.map(data.points[:50], "new"), path=path).names), hm.load(path).names[-1]
        (7, 'new')
        """
        if mapped.reference is not self:
            raise InvalidInputError(
                "samples mapped onto this atlas", "samples mapped onto another atlas", "map the samples onto this atlas"
            )
        twice = sorted(set(self.names) & set(mapped.names))
        if twice:
            raise InvalidInputError(
                "new sample names", f"{listed(twice)}, already in the atlas", "rename these samples"
            )
        given = sample_columns({} if variables is None else variables, mapped.names)
        unknown = [name for name in given if name not in self.variables]
        if unknown:
            raise InvalidInputError(f"sample metadata of the atlas ({listed(self.variables)})", listed(unknown))
        missing = [None] * len(mapped.names)
        values = {name: given.get(name, missing) for name in self.variables}
        # Check the samples even without ``path``, so that the larger atlas can be saved later.
        table = Table.checked(mapped.embedding, mapped.names, values, counts=_whole(mapped))
        if path is None:
            return self._holding(Table(self.embedding, self.names, self.variables, self.counts).append(table))
        samples = Samples(Store.open(path, {ATLAS_SCHEMA: ATLAS_VERSION}))
        if samples.schema.model != fingerprint(self.model):
            raise InvalidInputError(
                f"this atlas at {quoted_path(str(path))}",
                "another atlas",
                "load the atlas from this path, and map the samples onto it",
            )
        return self._holding(samples.append(table).table())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the atlas to a folder; `heatmover.load` reads it back bit-identically. See `DiffusionEMD.save`.

        To add samples to a saved atlas, use `add` with ``path``, which writes only the new samples.

        Parameters
        ----------
        path
            Path of the new folder, by convention ending in ``.atlas``.
        overwrite
            Replace an existing model, atlas or index; any other file or folder is never replaced.
        """
        table = Table.checked(self.embedding, self.names, self.variables, counts=self.counts)
        schema = table.schema(fingerprint(self.model))
        parts = chain([self.to_record().part_of_store()], table.parts(schema))
        Store.create(path, ATLAS_SCHEMA, ATLAS_VERSION, parts, values=schema.values(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Atlas:
        """Read an atlas that `save` wrote, or raise an error if a file has changed.

        Samples that another process is appending are read completely or not at all.
        """
        store = Store.open(path, {ATLAS_SCHEMA: ATLAS_VERSION})
        return cls.from_record(Record.from_store(store), Samples(store))

    def to_record(self) -> Record:
        """Return a record of everything except the reference samples; adding samples does not change this record."""
        parts = {
            "model": self.model.to_record(),
            "nodes": self.nodes.to_record(),
            "features": self.features.to_record(),
            "support": self.support.to_record(),
        }
        if self.curve is not None:
            parts["curve"] = self.curve.to_record()
        return Record({"ground": self.ground, "fingerprint": fingerprint(self.model)}, {}, parts)

    @classmethod
    def from_record(cls, record: Record, samples: Samples) -> Atlas:
        """Return an atlas from a record and reference samples; raise an error if they belong to different atlases."""
        model = DiffusionEMD.from_record(record.part("model"))
        nodes, features = Landmarks.from_record(record.part("nodes")), Features.from_record(record.part("features"))
        if nodes.n_landmarks != model.n_features_in_:
            raise InvalidInputError(
                f"{counted(model.n_features_in_, 'stored node')}, as in the stored model", f"{nodes.n_landmarks}"
            )
        schema, own = samples.schema, fingerprint(model)
        expected = (own, own, nodes.n_landmarks, model.prepared_.layout.n_features)
        if (record.text("fingerprint"), schema.model, schema.n_nodes, schema.n_features) != expected:
            raise InvalidInputError(
                "stored samples that belong to the stored model", "samples of another model", DAMAGED
            )
        table = samples.table()
        return cls(
            table.names,
            table.counts,
            table.rows,
            table.variables,
            model,
            nodes,
            features,
            Support.from_record(record.part("support"), nodes.centers.shape[1]),
            Curve.from_record(record.part("curve")) if "curve" in record.parts else None,
            record.optional_text("ground"),
        )

    def _holding(self, table: Table) -> Atlas:
        """Return the atlas with the reference samples of ``table`` instead of its own."""
        return replace(self, names=table.names, counts=table.counts, embedding=table.rows, variables=table.variables)

    def __repr__(self) -> str:
        variables = f"; variables: {', '.join(self.variables)}" if self.variables else ""
        return (
            f"Atlas({counted(len(self.names), 'sample')} of {counted(int(self.sizes.sum()), 'cell')} on "
            f"{counted(self.nodes.n_landmarks, 'node')}, "
            f"{counted(len(self.features.names), 'feature')}{variables})"
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Mapped(ReadOnlyArrays):
    """New samples mapped onto an atlas, as returned by `Atlas.map`; ``print`` shows a summary.

    Attributes
    ----------
    names, sizes
        Name and number of cells of each new sample, ``(n_samples,)``.
    measures
        Mass of the new samples at the nodes of the atlas, ``(n_samples, n_nodes)``.
    embedding
        ``(n_samples, n_features)``: embedding of the new samples by the model of the atlas.
    coverage
        Coverage of the new samples: whether the reference has cells like the cells of each sample.
    warnings
        Warnings about valid but unusual input, such as features whose unit seems to differ from the reference.
    reference
        The atlas.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(14, cells_per_sample=60, effect=8.0)
    >>> new = np.isin(data.labels, ["case-07", "control-07"])
    >>> condition = ["case"] * 6 + ["control"] * 6
    >>> atlas = hm.build_atlas(data.points[~new], data.labels[~new], variables={"condition": condition})
    >>> mapped = atlas.map(data.points[new], data.labels[new])
    >>> distances, indices = mapped.nearest(3)
    >>> mapped.coverage.covered
    (True, True)
    >>> mapped.predict("condition", k=3).values
    ('case', 'control')
    """

    names: tuple[str, ...]
    sizes: Int64
    measures: Measures
    embedding: FloatArray
    coverage: Coverage
    warnings: tuple[str, ...]
    reference: Atlas

    @cached_property
    def distances(self) -> Float64:
        """Distances to the reference samples in the unit of the atlas, ``(n_samples, n_reference)``."""
        reference = self.reference
        apart = pairwise_distances(self.embedding, reference.embedding, n_jobs=reference.model.n_jobs)
        return reference.in_units(apart)

    def nearest(self, k: int = 10, *, method: SearchMethod = "auto") -> tuple[Float64, Int64]:
        """Return the k nearest reference samples of each new sample.

        Parameters
        ----------
        k
            Number of neighbors, at most the number of reference samples.
        method
            As in `heatmover.MeasureIndex.nearest`: ``"auto"`` is exact for fewer than 10,000 reference samples.

        Returns
        -------
        distances : ndarray of shape (n_samples, k)
            Distances to the nearest reference samples, ascending in each row.
        indices : ndarray of shape (n_samples, k)
            Indices of these reference samples in ``reference.names``. Ties are sorted by index.
        """
        k = check_integer("k", k, minimum=1, maximum=len(self.reference.names))
        return self.reference.nearest(self.embedding, k, method)

    def predict(self, variable: str, k: int | None = None, *, blocks: str | None = None) -> Prediction:
        """Predict sample metadata from the nearest reference samples, and estimate the reliability of the predictions.

        Each of the k nearest samples with a value has one vote. In a tie between labels, the label of the nearer
        samples wins. To estimate reliability, each reference sample is predicted from all other reference samples. The
        reliability of a prediction is the share of correct predictions among the reference samples with a similar share
        of votes.

        Parameters
        ----------
        variable
            Name of a variable of the reference samples.
        k
            Number of neighbors that vote. None: 10, but at most one less than the number of reference samples with a
            value.
        blocks
            Name of a variable that marks dependent reference samples, such as the patient. To estimate reliability,
            each sample is left out together with its whole block, because neighbors in its own block would make
            predictions look too reliable.
        """
        reference = self.reference
        values = reference.variable(variable)
        known = np.flatnonzero([value is not None for value in values])
        k = max(1, min(NEIGHBORS, known.size - 1)) if k is None else check_integer("k", k, minimum=1)
        if known.size <= k:
            raise InvalidInputError(
                f"more than {argument('k', k)} reference samples with a value of {quoted(variable)}",
                f"{known.size}", f"lower {argument('k')}",
            )  # fmt: skip
        own = None if blocks is None else reference.variable(blocks)
        between = np.where(may_vote(known, own), reference.distances[np.ix_(known, known)], np.inf)
        here = [values[i] for i in known]
        return predict(here, self.distances[:, known], between, k)

    def coordinates(self) -> Float64:
        """Return the coordinates of each new sample on the map of the reference, ``(n_samples, 2)``.

        The map of the reference does not change. New samples are placed by their distances to the reference samples
        (Gower 1968). A reference sample would be placed at its own coordinates.
        """
        places, reference = self.reference.coordinates, self.reference.distances
        # Gower's formula: -1/2 X+ (d^2 - mean d^2 of the reference). The pseudoinverse X+ of the coordinates is simple,
        # because the axes of the map are orthogonal.
        sums = (places**2).sum(axis=0)
        shifted = self.distances**2 - (reference**2).mean(axis=1)
        return np.asarray(-0.5 * shifted @ (places / np.where(sums > 0, sums, 1.0)))

    def intervals(
        self, *, n_bootstrap: int = 200, confidence: float = 0.95, random_state: int = 0
    ) -> tuple[Float64, Float64, Bool]:
        """Return confidence intervals of the distances to the reference samples.

        Parameters
        ----------
        n_bootstrap, confidence, random_state
            As in `heatmover.uncertainty`.

        Returns
        -------
        lower, upper : ndarray of shape (n_samples, n_reference)
            Bounds of the pointwise confidence interval of the true distance of each pair.
        distinguishable : ndarray of shape (n_samples, n_reference)
            Whether the interval of a pair excludes zero.
        """
        check_integer("n_bootstrap", n_bootstrap, minimum=1)
        reference, count = self.reference, len(self.names)
        masses = sp.vstack([self.measures.masses, reference.measures.masses], format="csr")
        noise = uncertainty(
            reference.model, measures_from_weights(masses), np.r_[self.sizes, reference.sizes],
            embedding=np.vstack([self.embedding, reference.embedding]), n_bootstrap=n_bootstrap,
            confidence=confidence, random_state=random_state, n_jobs=reference.model.n_jobs,
        )  # fmt: skip
        assert noise.lower is not None
        assert noise.upper is not None
        rows = slice(0, count), slice(count, None)
        return reference.in_units(noise.lower[rows]), reference.in_units(noise.upper[rows]), noise.distinguishable[rows]

    def explain(self, name: str, group: Any = None, *, variable: str | None = None) -> Any:
        """Explain at which nodes a new sample differs from its nearest reference sample, or from a group.

        Parameters
        ----------
        name
            Name of the new sample.
        group, variable
            Compare with the mean of all reference samples whose ``variable`` is ``group``. None: compare with the
            nearest reference sample.

        Returns
        -------
        heatmover.attribution.Explanation
            Explanation whose points are the nodes of the atlas, in the order of ``reference.nodes.centers``.
        """
        row = list(self.names).index(find(name, self.names, "a mapped sample"))
        reference = self.reference
        if variable is None:
            chosen, called = [int(self.nearest(1)[1][row, 0])], "the nearest"
        else:
            values = reference.variable(variable)
            chosen, called = [i for i, value in enumerate(values) if value == group], f"{variable}={group}"
        if not chosen:
            raise InvalidInputError(f"reference samples with {called}", "none")
        other = np.asarray(reference.measures.masses[chosen].mean(axis=0)).ravel()
        return explain(reference.model, self.measures.toarray()[row], other)

    def lines(self, k: int = 3) -> Iterator[str]:
        """Yield one line of results for each sample, and then the warnings."""
        distances, indices = self.nearest(min(k, len(self.reference.names)))
        for row, name in enumerate(self.names):
            near = ", ".join(
                f"{quoted(self.reference.names[i])} ({distance:.3g})"
                for i, distance in zip(indices[row], distances[row], strict=True)
            )
            yield f"{quoted(name)}, {counted(int(self.sizes[row]), 'cell')}: nearest {near}; {self._covered(row)}"
        yield from self.warnings

    def uncovered(self) -> Iterator[str]:
        """Yield a line for each sample that the atlas does not cover."""
        for row, name in enumerate(self.names):
            if self.coverage.covered[row] is False:
                yield f"{quoted(name)}: {self._covered(row)}"

    def to_csv(self, path: str | os.PathLike[str], k: int | None = None, predict: Sequence[str] = ()) -> None:
        """Write the results as CSV, one row for each sample; the file is written atomically.

        The first columns are sample, cells, covered (true, false or unknown), far (share of far cells) and p. The next
        columns are the predicted value, the vote and the reliability for each variable in ``predict``. The last columns
        are the names and distances of the nearest reference samples.

        Parameters
        ----------
        path
            Path of the file; an existing file is replaced.
        k
            Number of nearest reference samples to write and to predict from. None: 10, or all reference samples if
            there are fewer than 10.
        predict
            Names of the variables to predict.
        """
        at_most = NEIGHBORS if k is None else check_integer("k", k, minimum=1)
        count = min(at_most, len(self.reference.names))
        distances, indices = self.nearest(count)
        answers = [(name, self.predict(name, k)) for name in predict]
        header = ["sample", "cells", "covered", "far", "p"]
        header += [column for name, _ in answers for column in (name, f"{name} vote", f"{name} chance")]
        header += [column for i in range(1, count + 1) for column in (f"nearest {i}", f"distance {i}")]
        write_table(path, header, (self._row(i, answers, distances[i], indices[i]) for i in range(len(self.names))))

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        predict: Sequence[str] | None = None,
        k: int = 10,
        title: str | None = None,
        n_bootstrap: int = 100,
        random_state: int = 0,
    ) -> None:
        """Write the results as one HTML page that works offline; needs jinja2 (extra ``cohort``).

        The page shows coverage, the map, predictions with vote and reliability, the nearest reference samples with
        metadata and confidence intervals of the distances, and the cells that differ.

        Parameters
        ----------
        path
            Path of the page; an existing file is replaced atomically.
        predict
            Names of the variables to predict; the first variable colors the map. None: all numeric variables, and all
            variables with groups of several samples.
        k
            Number of nearest reference samples to show and to predict from.
        title
            Heading of the page.
        n_bootstrap, random_state
            As in `intervals`; the page has no intervals if ``n_bootstrap`` is 0.
        """
        handed("report_mapped")(
            self, path, predict=predict, k=k, title=title, n_bootstrap=n_bootstrap, random_state=random_state
        )

    def _row(
        self, row: int, answers: Sequence[tuple[str, Prediction]], distances: Float64, indices: Int64
    ) -> list[object]:
        coverage = self.coverage
        covered = coverage.covered[row]
        verdict = "unknown" if covered is None else "true" if covered else "false"
        values: list[object] = [self.names[row], int(self.sizes[row]), verdict]
        values += [float(coverage.shares[row]), float(coverage.p_values[row])]
        for _, answer in answers:
            shares = (float(answer.votes[row]), float(answer.chances[row]))
            values += [answer.values[row], *("" if np.isnan(share) else share for share in shares)]
        for distance, i in zip(distances, indices, strict=True):
            values += [self.reference.names[i], float(distance)]
        return values

    def _covered(self, row: int) -> str:
        coverage = self.coverage
        far = f"{percent(float(coverage.shares[row]))} of the cells of this sample are far from the reference"
        usual = f"compared with {percent(coverage.expected)} in reference samples"
        if coverage.covered[row] is None:
            return f"coverage unknown: {far}, {usual}; there are too few reference samples for a test"
        if coverage.covered[row]:
            return f"covered: {far}, {usual}"
        # With fewer than 19 reference samples, the false-positive rate cannot be as low as 5%.
        often = f"; false-positive rate up to {percent(coverage.level)}" if coverage.level > RANKED else ""
        return f"NOT COVERED: {far}, {usual} (p = {coverage.p_values[row]:.1g}{often})"

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def build_atlas(
    source: Cohort | npt.ArrayLike | Any,
    labels: npt.ArrayLike | None = None,
    *,
    features: Sequence[str] | None = None,
    variables: Mapping[str, Sequence[Any]] | None = None,
    n_neighbors: int = 30,
    landmarks: int | Literal["auto"] | Landmarks | None = "auto",
    model: DiffusionEMD | None = None,
    units: Units = None,
    pieces: InPieces | None = None,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Atlas:
    """Build an atlas of reference samples, onto which new samples can be mapped.

    Parameters
    ----------
    source
        A `Cohort` from `heatmover.read_cohort` (for cells in files or AnnData, and for scaled or projected features),
        or points ``(n_cells, n_features)`` (an array, or a DataFrame whose columns name the features).
    labels
        ``(n_cells,)``: sample of each cell, required for points.
    features
        Names of the features, if the points are an array.
    variables
        Sample metadata: a DataFrame or a mapping of names to values. Values of a DataFrame or Series are assigned by
        the sample names in its index; lists and arrays must be in the order of the samples. Default: the metadata of
        the cohort.
    n_neighbors, model, units, random_state, n_jobs, progress
        As in `heatmover.compare`.
    landmarks
        As in `heatmover.compare`; or existing landmarks, such as the nodes of another atlas.
    pieces
        Settings for a cohort that does not fit into memory, for instance
        ``heatmover.study.scale.InPieces(memory="4 GB")``. The cells are read out of core and approximated by
        landmarks. The atlas does not depend on the memory budget, and is bit-identical to an atlas built in memory
        with the same landmarks.

    Returns
    -------
    Atlas
        The atlas. `Atlas.map` maps new samples onto it, and `Atlas.save` saves it.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(6, cells_per_sample=40)
    >>> atlas = hm.build_atlas(data.points, data.labels)
    >>> again = atlas.map(data.points, data.labels)
    >>> bool((again.embedding == atlas.embedding).all())
    True
    """
    check_units(units)
    copy = check_model(model, random_state=random_state, n_jobs=n_jobs)
    given = _read(source, labels, features)
    names, codes = given.names, given.codes
    if len(names) < 2:
        raise InvalidInputError("at least two reference samples", f"one, {names[0]!r}")
    # If the metadata cannot be saved, raise an error before any computation.
    table = Table.checked(np.empty((len(names), 0)), names, given.table if variables is None else variables)
    rng = check_random_state(random_state)
    draw = CellDraw.for_support(np.bincount(codes, minlength=len(names)), int(rng.integers(2**62)))
    if pieces is None:
        nodes, counts = _count_in_memory(given, landmarks, random_state, copy.n_jobs, progress)
    else:
        nodes, counts = _count_out_of_core(given, landmarks, pieces, n_neighbors, random_state, progress)
    reference_features = given.read_features(draw)
    measures = measures_from_weights(counts, names=names)
    fitted = fit_samples(
        nodes.centers, measures, copy, n_neighbors=n_neighbors, units=units, random_state=random_state,
        progress=progress,
    )  # fmt: skip
    curve = None if fitted.calibration is None else fitted.calibration.curve
    progress.stage("hold samples out", 1)
    support = hold_out(*draw.cells(), len(names), copy.n_jobs)
    progress.advance()
    embedding = fitted.model.transform(measures)
    return Atlas(
        names, counts, embedding, table.variables, fitted.model, nodes, reference_features, support, curve, units
    )


@final
@dataclass(frozen=True, eq=False)
class _ReferenceCells:
    """Reference cells (in memory or in a cohort), the sample of each cell, and the sample metadata of the source."""

    names: tuple[str, ...]
    codes: IntArray
    table: Any
    source: Cohort | FloatArray
    features: Sequence[str] | None = None

    def points(self) -> FloatArray:
        """Return the points of all cells in memory, ``(n_cells, n_dimensions)``."""
        return self.source.points() if isinstance(self.source, Cohort) else self.source

    def read_features(self, draw: CellDraw) -> Features:
        """Return the features from one pass over all values; the pass also adds cells to ``draw``."""
        if isinstance(self.source, Cohort):
            return Features.of_cohort(self.source, draw)
        draw.add(self.source, self.codes)
        return Features.of_points(self.source, self.features)


def _read(source: Any, labels: npt.ArrayLike | None, features: Sequence[str] | None) -> _ReferenceCells:
    """Return the reference cells with samples and metadata, or raise if the arguments contradict each other."""
    if isinstance(source, Cohort):
        given = [argument(name) for name, value in (("labels", labels), ("features", features)) if value is not None]
        if given:
            noun, them = ("argument", "it") if len(given) == 1 else ("arguments", "them")
            raise InvalidInputError(
                "only a Cohort, which already contains labels and features",
                f"the {noun} {' and '.join(given)} as well", f"leave {them} out",
            )  # fmt: skip
        check_unmoved(source)
        return _ReferenceCells(source.names, source.codes, source.samples, source)
    if labels is None:
        raise InvalidInputError(
            "a Cohort, or points and labels", f"{type(source).__name__} without {argument('labels')}",
            "hm.read_cohort reads files and AnnData",
        )  # fmt: skip
    columns = getattr(source, "columns", None)
    if features is None and columns is not None:
        features = [str(name) for name in columns]
    points = check_matrix("points", source)
    names, codes = code_labels(labels, len(points))
    check_names(points.shape[1], features)
    return _ReferenceCells(names, codes, {}, points, features)


def _count_in_memory(
    given: _ReferenceCells, landmarks: Any, random_state: int, n_jobs: int | None, progress: Progress
) -> tuple[Landmarks, sp.csr_array]:
    """Return the nodes and the number of cells of each sample at each node, ``(n_samples, n_nodes)``."""
    points, codes, n_samples = given.points(), given.codes, len(given.names)
    nodes = landmarks if isinstance(landmarks, Landmarks) else None
    if nodes is None:
        rows = sp.csr_array((np.ones(codes.size), (codes, np.arange(codes.size))), shape=(n_samples, codes.size))
        placed = place_landmarks(
            points, measures_from_weights(rows, names=given.names), landmarks, random_state=random_state,
            n_jobs=n_jobs, progress=progress,
        )  # fmt: skip
        nodes = _own_nodes(points) if placed is None else placed[0]
    return nodes, _count_at(nodes.assign(points, n_jobs=n_jobs), codes, (n_samples, nodes.n_landmarks))


def _count_out_of_core(
    given: _ReferenceCells, landmarks: Any, pieces: InPieces, n_neighbors: int, random_state: int, progress: Progress
) -> tuple[Landmarks, sp.csr_array]:
    """Return the results of `_count_in_memory` for cells that are read out of core."""
    if not isinstance(given.source, Cohort):
        raise InvalidInputError(f"a Cohort, because {argument('pieces')} reads cells from a file", "points in memory")
    if landmarks is None or isinstance(landmarks, Landmarks):
        raise InvalidInputError(
            f"{argument('landmarks')} to be a number or 'auto' with {argument('pieces')}",
            argument("landmarks", None) if landmarks is None else "existing landmarks",
            f"leave out either {argument('landmarks')} or {argument('pieces')}",
        )
    need, budget = support_bytes(given.source.n_cells, given.source.n_dimensions), check_memory(pieces.memory)
    if need > budget:
        raise InvalidInputError(
            f"{argument('memory')} of at least {need / 1e6:,.0f} MB to compute the coverage",
            f"{budget / 1e6:,.0f} MB", "raise the limit",
        )  # fmt: skip
    parameters = StudyParameters(landmarks=landmarks, n_neighbors=n_neighbors, random_state=random_state)
    with cells_counted(Request(given.source, pieces, parameters, progress)) as counted_cells:
        return counted_cells.histograms.landmarks, counted_cells.histograms.counts.astype(np.float64)


def _count_at(places: Int64, codes: IntArray, shape: tuple[int, int]) -> sp.csr_array:
    """Return the number of cells of each sample at each node, ``(n_samples, n_nodes)``, with sorted indices."""
    keys, counts = np.unique(codes.astype(np.int64) * shape[1] + places, return_counts=True)
    rows, columns = np.divmod(keys, shape[1])
    return sp.csr_array((counts.astype(np.float64), (rows, columns)), shape=shape)


def _own_nodes(points: FloatArray) -> Landmarks:
    """Return the distinct cells as landmarks."""
    centers, place = distinct_points(np.asarray(points, dtype=np.float64))
    return Landmarks(centers, np.bincount(place).astype(np.int64), 0.0, {"n_points": len(points), "every_point": True})


def _whole(mapped: Mapped) -> sp.csr_array:
    """Return the number of cells of mapped samples at each node: mass times sample size, rounded to whole numbers."""
    masses = mapped.measures.masses
    data = np.rint(masses.data * np.repeat(mapped.sizes, np.diff(masses.indptr)))
    return sp.csr_array((data, masses.indices, masses.indptr), shape=masses.shape)


def load(path: str | os.PathLike[str]) -> DiffusionEMD | Atlas:
    """Read a saved model or atlas; the result is bit-identical to the object that was saved.

    Every file is checked against its SHA-256 before it is used. An error is raised if the folder is damaged, was
    written by another program, or requires a newer version of heatmover.

    Parameters
    ----------
    path
        Folder that `DiffusionEMD.save` or `Atlas.save` wrote.

    Returns
    -------
    DiffusionEMD or Atlas
        The saved object.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "line.model"
    >>> hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit().save(path)
    >>> hm.load(path).n_features_in_
    30
    """
    store = Store.open(path, {MODEL_SCHEMA: MODEL_VERSION, ATLAS_SCHEMA: ATLAS_VERSION})
    record = Record.from_store(store)
    if store.manifest.kind == ATLAS_SCHEMA:
        return Atlas.from_record(record, Samples(store))
    return DiffusionEMD.from_record(record)


def verify(path: str | os.PathLike[str]) -> dict[str, int]:
    """Verify the checksums of a saved model, atlas or index; this needs little memory.

    Parameters
    ----------
    path
        Path of the folder.

    Returns
    -------
    dict
        Size of each file in bytes, by path of the file in the folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "line.model"
    >>> hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit().save(path)
    >>> verify(path)["part000001/prepared/operator/degree/c/0"]
    240
    """
    return Store.open(path).verify()
