"""`Atlas`: a fitted model, the samples it was fitted on, and everything that new samples need to land among them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.files import plain
from heatmover._base.handed import handed
from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import DAMAGED, Record, Samples, Schema, Store, Table, parts_of
from heatmover._base.types import Bool, Float64, FloatArray, Int64, IntArray
from heatmover._base.validation import (
    check_finite,
    check_integer,
    check_matrix,
    check_memory,
    check_option,
    check_random_state,
    sample_columns,
)
from heatmover._base.words import counted, find, listed, percent, quoted, quoted_path
from heatmover.atlas.coverage import RANKED, CellDraw, Coverage, Support, hold_out, support_bytes
from heatmover.atlas.features import Features, Ranges, check_names, check_unmoved, code_labels, raw_blocks
from heatmover.atlas.index.index import MeasureIndex, fingerprint
from heatmover.atlas.placing import PLACEMENTS, UNIT, Placement, around, count_at, share_among
from heatmover.atlas.prediction import Prediction, may_vote, predict
from heatmover.attribution import explain
from heatmover.cohort import Cohort
from heatmover.embedding import pairwise_distances
from heatmover.embedding.estimator import MODEL_SCHEMA, MODEL_VERSION, DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Landmarks
from heatmover.graphs.distinct import distinct_points
from heatmover.measures import Measures, is_missing, measures_from_weights
from heatmover.statistics.manifold import classical_scaling
from heatmover.statistics.noise import uncertainty
from heatmover.study.comparison import check_model, check_units, fit_samples
from heatmover.study.landmarking import place_landmarks
from heatmover.study.parameters import StudyParameters, Units
from heatmover.study.scale.pieces import InPieces, Request, cells_counted
from heatmover.study.tables import write_table
from heatmover.transport.calibration import Curve

__all__ = ["ATLAS_SCHEMA", "ATLAS_VERSION", "Atlas", "Mapped", "build_atlas", "load", "verify"]

# Of the records of atlases; `docs/atlas_format.md` describes them.
ATLAS_SCHEMA, ATLAS_VERSION = "heatmover-atlas", 3
# Nearest reference samples that are told and vote, if nobody says how many.
NEIGHBORS = 10

SearchMethod = Literal["auto", "exact", "approximate"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Atlas(ReadOnlyArrays):
    """Reference samples and what new ones need to land among them; `build_atlas` makes one, `heatmover.load` reads one.

    Attributes
    ----------
    names
        Of the reference samples.
    counts
        ``(n_samples, n_nodes)``, CSR: cells of each sample at each node.
    embedding
        ``(n_samples, n_features)``: of the reference samples.
    variables
        Values of the reference samples by name of the variable, None where one is missing.
    model
        The fitted `DiffusionEMD`, over the nodes.
    nodes
        Where cells are placed: landmarks, or the different cells of the reference themselves.
    features
        Names, scaling and projection of the features, and the values that the reference has seen.
    support
        What tells whether the reference knows the cells of a sample; None for one sample.
    curve, ground
        From distances of the embedding to real units, and which; None where no units were asked for.

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
    support: Support | None
    curve: Curve | None = None
    ground: str | None = None

    @cached_property
    def sizes(self) -> Int64:
        """``(n_samples,)``: cells of each reference sample."""
        return np.asarray(self.counts.sum(axis=1)).ravel().astype(np.int64)

    @cached_property
    def measures(self) -> Measures:
        """The reference samples as masses on the nodes."""
        return measures_from_weights(self.counts, names=self.names)

    @cached_property
    def distances(self) -> Float64:
        """``(n_samples, n_samples)``: between the reference samples."""
        return self.in_units(pairwise_distances(self.embedding, n_jobs=self.model.n_jobs))

    @cached_property
    def _search(self) -> MeasureIndex:
        # By place in the list, not by name: only the places of the nearest are asked for. `index` is the user's.
        return MeasureIndex.from_embedding(self.embedding)

    def nearest(self, rows: FloatArray, k: int, method: SearchMethod) -> tuple[Float64, Int64]:
        """Return distances to, and places of, the k nearest reference samples of rows of the embedding."""
        nearest = self._search.nearest(rows, k, method=method, n_jobs=self.model.n_jobs)
        return self.in_units(nearest.distances), nearest.rows

    def in_units(self, distances: FloatArray) -> Float64:
        """Return distances of the embedding in real units, if the atlas has them."""
        values = np.asarray(distances, dtype=np.float64)
        return values if self.curve is None else self.curve(values)

    @cached_property
    def coordinates(self) -> Float64:
        """``(n_samples, 2)``: the map of the reference samples, classical scaling of their distances."""
        return classical_scaling(self.distances, 2)[0]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the columns of the nodes: those of the features, or of principal components."""
        if self.features.projection.components is None:
            return self.features.names
        return tuple(f"component {number}" for number in range(1, self.nodes.centers.shape[1] + 1))

    def variable(self, name: str) -> tuple[Any, ...]:
        """Return the values of a variable, or raise with the nearest name."""
        return self.variables[find(name, self.variables, "a variable of the atlas")]

    @cached_property
    def index(self) -> MeasureIndex:
        """The reference samples as an index: the nearest of a sample, of measures on the nodes or of rows.

        It is in memory and a copy: what is added to it does not change the atlas. `MeasureIndex.open` opens a saved
        atlas itself, in whose folder it keeps the graph of an approximate search.

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
        placement: Placement = "nearest",
        on_missing: Literal["refuse", "drop"] = "refuse",
        skip_unlisted: bool = False,
        n_jobs: int | None = None,
    ) -> Mapped:
        """Place new samples on the atlas, which stays as it is.

        Their cells are scaled and projected as the reference's were, placed on the nodes, and embedded by the fitted
        model. Cells of the reference itself give its embedding again, to the bit; through landmarks with the placement
        by which they were counted, the nearest.

        Parameters
        ----------
        source
            A file or folder as in `heatmover.read_cohort`, an AnnData, or points ``(n_cells, n_features)``. Features
            are found by name, in any order: columns of a table, ``var_names``, channels, columns of a DataFrame; one
            that is missing is an error, further ones are left out.
        labels
            ``(n_cells,)``: the sample of each cell, if points are given; a single name for one sample.
        sample_key
            The column that tells the sample of each cell; default as in the reference.
        sample_sheet
            As in `heatmover.read_cohort`.
        placement
            ``"nearest"``: a cell goes to the nearest node. ``"kernel"``: the nearest node, at distance d, shares it
            with those joined to it in the graph, by the weights exp(-r^2 / d^2) of their distances r; a cell at a node
            is wholly there. Such samples cannot be added, and have no intervals.
        on_missing, skip_unlisted
            As in `heatmover.read_cohort`, for files and AnnData.
        n_jobs
            Threads; None for all cores. The result does not depend on it.

        Returns
        -------
        Mapped
            Distances to the reference samples, coverage, warnings; print it.
        """
        check_option("placement", placement, PLACEMENTS)
        if labels is None and not hasattr(source, "dtype") and not hasattr(source, "columns"):
            cohort = self.features.open(source, sample_key, sample_sheet, on_missing, skip_unlisted)
            return self._mapped(cohort.names, raw_blocks(cohort), tuple(cohort.warnings), placement, n_jobs)
        values = self.features.values_of(source)
        if labels is None:
            raise InvalidInputError("the sample of each point, or one name for all", f"no {argument('labels')}")
        names, codes = code_labels(labels, len(values))
        return self._mapped(names, [(values, codes)], (), placement, n_jobs)

    def _mapped(
        self, names: tuple[str, ...], blocks: Any, warnings: tuple[str, ...], placement: Placement, n_jobs: int | None
    ) -> Mapped:
        ranges = Ranges(len(self.features.names))
        shape = (len(names), self.nodes.n_landmarks)
        joined = around(self.model.graph_) if placement == "kernel" else None
        counts = sp.csr_array(shape, dtype=np.float64 if joined is None else np.int64)
        chances, every = [], []
        draw = None if self.support is None else self.support.draw(len(names))
        for values, codes in blocks:
            ranges.add(values)
            points = self.features.projection.apply(values)
            places = self.nodes.assign(points, n_jobs=n_jobs)
            if joined is None:
                counts = counts + count_at(places, codes, shape)
            else:
                counts = counts + share_among(joined, self.nodes.centers, points, places, codes, len(names))
            if self.support is not None:
                chances.append(self.support.judge(points, n_jobs))
            if draw is not None:
                draw.add(points, codes)
            every.append(codes)
        coverage, of_sample = None, np.concatenate(every)
        if self.support is not None:
            coverage = self.support.verdict(np.concatenate(chances), of_sample, len(names), draw, n_jobs)
        measures = measures_from_weights(counts if joined is None else counts * UNIT, names=names)
        sizes = np.bincount(of_sample, minlength=len(names)).astype(np.int64)
        embedding = self.model.transform(measures)
        remarks = (*warnings, *self.features.remarks(ranges))
        return Mapped(names, sizes, measures, embedding, coverage, remarks, self, placement)

    def add(
        self,
        mapped: Mapped,
        variables: Mapping[str, Sequence[Any]] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> Atlas:
        """Return an atlas with further reference samples; nodes, model and all earlier rows stay.

        What counts as covered stays too: it is judged by the samples that the atlas was built of.

        Parameters
        ----------
        mapped
            From `map` of this atlas.
        variables
            Values of the new samples by name of the variable; one that is not given is missing.
        path
            Where this atlas was saved, to append the samples there: completely or not at all, whenever the process
            ends; when this returns they are on the disk. One process writes at a time, readers need not wait. None: in
            memory alone.

        Returns
        -------
        Atlas
            With ``path``, all samples that are there now, those that others have added since included.

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
            raise InvalidInputError("samples mapped onto this atlas", "samples mapped onto another", "map them again")
        mapped.check_whole("samples to add, whose cells are counted at the nodes as the reference's are")
        twice = sorted(set(self.names) & set(mapped.names))
        if twice:
            raise InvalidInputError("names that the atlas does not have yet", listed(twice), "rename these samples")
        given = _check_variables({} if variables is None else variables, mapped.names)
        unknown = [name for name in given if name not in self.variables]
        if unknown:
            raise InvalidInputError(f"variables of the atlas ({listed(self.variables)})", listed(unknown))
        missing = (None,) * len(mapped.names)
        values = {name: given.get(name, missing) for name in self.variables}
        # Checked in memory too: what was added can be saved.
        table = Table.checked(mapped.embedding, mapped.names, values, counts=_whole(mapped))
        if path is not None:
            return self._holding(self._samples_at(Path(path)).append(table))
        return replace(
            self,
            names=self.names + table.names,
            counts=sp.csr_array(sp.vstack([self.counts, table.counts], format="csr")),
            embedding=np.concatenate([self.embedding, table.rows]),
            variables={name: column + table.variables[name] for name, column in self.variables.items()},
        )

    def _samples_at(self, place: Path) -> Samples:
        """Return the samples of this atlas where it was saved, or raise if another one is there."""
        samples = Samples(Store.open(place, {ATLAS_SCHEMA: ATLAS_VERSION}))
        if samples.schema.model != fingerprint(self.model):
            raise InvalidInputError(
                f"this atlas, as it was saved, at {quoted_path(str(place))}",
                "another one",
                "load the one that is there, and map the samples onto it",
            )
        return samples

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the atlas as a folder that `heatmover.load` reads, to the same bits; see `DiffusionEMD.save`.

        To add samples to an atlas that is there, `add` with ``path``: it writes these alone.

        Parameters
        ----------
        path
            Of the folder that is to be made, by custom ending in ``.atlas``.
        overwrite
            Replace a store of heatmover that is there; anything else is never replaced.
        """
        rows = self.embedding
        table = Table.checked(rows, self.names, self.variables, counts=self.counts)
        dtype: Literal["float32", "float64"] = "float32" if rows.dtype == np.float32 else "float64"
        schema = Schema(rows.shape[1], dtype, tuple(table.variables), fingerprint(self.model), self.nodes.n_landmarks)
        parts = chain([self.to_record().part_of_store()], parts_of(table, schema))
        values = {"samples": schema.values()}
        Store.create(path, ATLAS_SCHEMA, ATLAS_VERSION, parts, values=values, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Atlas:
        """Read an atlas that `save` wrote, or raise if any bit of it has changed.

        What another process appends meanwhile is there completely or not at all.
        """
        store = Store.open(path, {ATLAS_SCHEMA: ATLAS_VERSION})
        return cls.from_record(Record.from_store(store), Samples(store))

    def to_record(self) -> Record:
        """Return what of the atlas never changes, all but the reference samples, as a record that a store can hold."""
        parts = {
            "model": self.model.to_record(),
            "nodes": self.nodes.to_record(),
            "features": self.features.to_record(),
        }
        if self.support is not None:
            parts["support"] = self.support.to_record()
        if self.curve is not None:
            parts["curve"] = self.curve.to_record()
        return Record({"ground": self.ground, "fingerprint": fingerprint(self.model)}, {}, parts)

    @classmethod
    def from_record(cls, record: Record, samples: Samples) -> Atlas:
        """Return the atlas of a record and its reference samples, or raise if it is none."""
        model = DiffusionEMD.from_record(record.part("model"))
        nodes, features = Landmarks.from_record(record.part("nodes")), Features.from_record(record.part("features"))
        if nodes.n_landmarks != model.n_features_in_:
            raise InvalidInputError(
                f"{counted(model.n_features_in_, 'stored node')}, as the model has", f"{nodes.n_landmarks}"
            )
        schema, own = samples.schema, fingerprint(model)
        expected = (own, own, nodes.n_landmarks, model.prepared_.layout.n_features)
        if (record.text("fingerprint"), schema.model, schema.n_nodes, schema.n_features) != expected:
            raise InvalidInputError("stored samples that belong to the stored model", "those of another one", DAMAGED)
        empty = cls(
            (),
            sp.csr_array((0, nodes.n_landmarks)),
            np.empty((0, schema.n_features), dtype=schema.dtype),
            {},
            model,
            nodes,
            features,
            Support.from_record(record.part("support"), nodes.centers.shape[1]) if "support" in record.parts else None,
            Curve.from_record(record.part("curve")) if "curve" in record.parts else None,
            record.optional_text("ground"),
        )
        return empty._holding(samples)

    def _holding(self, samples: Samples) -> Atlas:
        """Return the same atlas with the samples of a store, all of them."""
        embedding = np.empty((samples.n_rows, samples.schema.n_features), dtype=samples.schema.dtype)
        for first, block in samples.blocks():
            embedding[first : first + len(block)] = block
        check_finite("the stored embedding", embedding)
        columns = {name: tuple(values) for name, values in samples.variables().items()}
        return replace(
            self, names=tuple(samples.names), counts=samples.counts(), embedding=embedding, variables=columns
        )

    def __repr__(self) -> str:
        told = f"; variables: {', '.join(self.variables)}" if self.variables else ""
        return (
            f"Atlas({counted(len(self.names), 'sample')} of {counted(int(self.sizes.sum()), 'cell')} on "
            f"{counted(self.nodes.n_landmarks, 'node')}, "
            f"{counted(len(self.features.names), 'feature')}{told})"
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Mapped(ReadOnlyArrays):
    """New samples on an atlas; `Atlas.map` makes one, ``print`` it.

    Attributes
    ----------
    names, sizes
        Of the new samples, and how many cells each has, ``(n_samples,)``.
    measures
        Their masses on the nodes of the atlas, ``(n_samples, n_nodes)``.
    embedding
        ``(n_samples, n_features)``, by the model of the atlas.
    coverage
        Whether the reference knows their cells; None if the atlas cannot tell.
    warnings
        What is legal but odd, such as other units, in sentences.
    reference
        The atlas.
    placement
        How cells were placed on the nodes, see `Atlas.map`.

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
    coverage: Coverage | None
    warnings: tuple[str, ...]
    reference: Atlas
    placement: Placement = "nearest"

    def check_whole(self, expected: str) -> None:
        """Raise unless every cell is wholly at one node."""
        if self.placement != "nearest":
            raise InvalidInputError(
                expected, f"samples mapped with {argument('placement', self.placement)}",
                f"map them with {argument('placement', 'nearest')}",
            )  # fmt: skip

    @cached_property
    def distances(self) -> Float64:
        """``(n_samples, n_reference)``: to the reference samples, in the unit of the atlas."""
        reference = self.reference
        apart = pairwise_distances(self.embedding, reference.embedding, n_jobs=reference.model.n_jobs)
        return reference.in_units(apart)

    def nearest(self, k: int = 10, *, method: SearchMethod = "auto") -> tuple[Float64, Int64]:
        """Return the k nearest reference samples of each sample.

        Parameters
        ----------
        k
            How many; at most as many as there are reference samples.
        method
            As in `heatmover.MeasureIndex.nearest`: ``"auto"`` is exact below 10,000 reference samples.

        Returns
        -------
        distances : ndarray of shape (n_samples, k)
            Ascending in each row.
        indices : ndarray of shape (n_samples, k)
            Into the names of the reference. Of equal distances the smaller index comes first.
        """
        k = check_integer("k", k, minimum=1, maximum=len(self.reference.names))
        return self.reference.nearest(self.embedding, k, method)

    def predict(self, variable: str, k: int | None = None, *, blocks: str | None = None) -> Prediction:
        """Tell a variable of the new samples from their nearest reference samples, and how far that is to be trusted.

        Each of the k nearest with a known value has one vote; a tie goes to the nearer. The chance comes from the
        reference's own samples, each left out in turn: how often a vote as clear as this one was right.

        Parameters
        ----------
        variable
            Of the reference samples.
        k
            Neighbours that vote; None for 10, or for all but one of the reference samples with a known value if these
            are fewer.
        blocks
            A variable that ties reference samples together, such as the patient: a sample's own block is left out with
            it when votes are judged, for its neighbours there would flatter them.
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
        """Return the place of each sample on the map of the reference, ``(n_samples, 2)``; the map does not move.

        A sample goes where its distances to the reference samples put it (Gower 1968); a sample of the reference comes
        to its own place.
        """
        places, reference = self.reference.coordinates, self.reference.distances
        # In the directions of the map, which are orthogonal: -1/2 X+ (d^2 - mean of the reference's).
        sums = (places**2).sum(axis=0)
        shifted = self.distances**2 - (reference**2).mean(axis=1)
        return np.asarray(-0.5 * shifted @ (places / np.where(sums > 0, sums, 1.0)))

    def intervals(
        self, *, n_bootstrap: int = 200, confidence: float = 0.95, random_state: int = 0
    ) -> tuple[Float64, Float64, Bool]:
        """Return intervals of the distances to the reference samples, from the numbers of cells on both sides.

        Parameters
        ----------
        n_bootstrap, confidence, random_state
            As in `heatmover.uncertainty`.

        Returns
        -------
        lower, upper : ndarray of shape (n_samples, n_reference)
            What infinitely many cells would show lies between, for each pair by itself.
        told_apart : ndarray of shape (n_samples, n_reference)
            Whether a pair differs by more than noise.
        """
        self.check_whole("cells that are drawn again, each wholly at its node, for intervals")
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
        return reference.in_units(noise.lower[rows]), reference.in_units(noise.upper[rows]), noise.told_apart[rows]

    def explain(self, name: str, group: Any = None, *, variable: str | None = None) -> Any:
        """Tell which nodes make a sample differ from its nearest reference sample, or from a group of them.

        Parameters
        ----------
        name
            Of the new sample.
        group, variable
            A value of a variable: the mean of the reference samples that have it. None: the nearest reference sample.

        Returns
        -------
        heatmover.attribution.Explanation
            Its points are the nodes of the atlas, ``reference.nodes.centers``.
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
        """Yield the answers, one line for each sample, then the warnings."""
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
            if self.coverage is not None and self.coverage.covered[row] is False:
                yield f"{quoted(name)}: {self._covered(row)}"

    def to_csv(self, path: str | os.PathLike[str], k: int | None = None, predict: Sequence[str] = ()) -> None:
        """Write the answers as CSV, one row for each sample, complete or not at all.

        The columns are sample, cells, covered (true, false, unknown), far (share of cells), p, then predicted value,
        vote and chance of each variable in ``predict``, then the names of the nearest reference samples and their
        distances.

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced.
        k
            Neighbours to write, and to vote; None for 10, or as many as there are.
        predict
            Variables of the reference.
        """
        asked = NEIGHBORS if k is None else check_integer("k", k, minimum=1)
        count = min(asked, len(self.reference.names))
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
        """Write the answers as one HTML page that opens offline in any browser; needs jinja2 (extra ``cohort``).

        Coverage, place on the map, predictions with vote and chance, nearest reference samples with their variables
        and intervals, and which cells differ.

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced. The new one appears complete or not at all.
        predict
            Variables of the reference to predict; the first colours the map. None: all that groups of samples share.
        k
            Nearest reference samples to show, and to vote.
        title
            Heading of the page.
        n_bootstrap, random_state
            Of the intervals, see `intervals`; ``n_bootstrap=0`` leaves them out.
        """
        handed("report_mapped")(
            self, path, predict=predict, k=k, title=title, n_bootstrap=n_bootstrap, random_state=random_state
        )

    def _row(
        self, row: int, answers: Sequence[tuple[str, Prediction]], distances: Float64, indices: Int64
    ) -> list[object]:
        coverage = self.coverage
        covered = None if coverage is None else coverage.covered[row]
        told = "unknown" if covered is None else "true" if covered else "false"
        values: list[object] = [self.names[row], int(self.sizes[row]), told]
        values += ["", ""] if coverage is None else [float(coverage.shares[row]), float(coverage.p_values[row])]
        for _, answer in answers:
            doubts = (float(answer.votes[row]), float(answer.chances[row]))
            values += [answer.values[row], *("" if np.isnan(doubt) else doubt for doubt in doubts)]
        for distance, i in zip(distances, indices, strict=True):
            values += [self.reference.names[i], float(distance)]
        return values

    def _covered(self, row: int) -> str:
        coverage = self.coverage
        if coverage is None:
            return "coverage unknown: the atlas has one sample"
        far = f"{percent(float(coverage.shares[row]))} of its cells far from the reference"
        usual = f"in the reference's own samples {percent(coverage.expected)}"
        if coverage.covered[row] is None:
            return f"{far}, {usual}; too few reference samples for a verdict"
        if coverage.covered[row]:
            return f"covered ({far}, {usual})"
        # With few reference samples no verdict can be rarer.
        often = (
            f"; so may {percent(coverage.level)} of samples like the reference's be" if coverage.level > RANKED else ""
        )
        return f"THIS SAMPLE IS NOT COVERED ({far}, {usual}; p = {coverage.p_values[row]:.1g}{often})"

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
    """Make an atlas of reference samples, onto which new samples can be mapped.

    Parameters
    ----------
    source
        A `Cohort` from `heatmover.read_cohort`, which knows files, AnnData, scaling and projections; or points
        ``(n_cells, n_features)``, whose features have names if it is a DataFrame.
    labels
        ``(n_cells,)``: the sample of each cell, if points are given.
    features
        Names of the features of points in an array.
    variables
        Metadata of the samples: a DataFrame or a mapping of names to values. What has an index, such as a DataFrame or
        a Series, is aligned with the names of the samples by it; a list or an array is in their order. Default: those
        of the cohort.
    n_neighbors, model, units, random_state, n_jobs, progress
        As in `heatmover.compare`.
    landmarks
        As in `heatmover.compare`; or landmarks that are there already, such as the nodes of another atlas.
    pieces
        ``heatmover.study.scale.InPieces(memory="4 GB")`` and the like: for a cohort whose cells do not fit into memory.
        Landmarks stand for the cells, which are read in pieces. The atlas is the same to the bit for any budget, and
        the same as without ``pieces`` through the same landmarks.

    Returns
    -------
    Atlas
        Its `map` takes new samples, its `save` writes it.

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
    values = _check_variables(given.table if variables is None else variables, names)
    # What cannot be saved is refused before anything is computed.
    Table.checked(np.empty((len(names), 0)), names, values)
    rng = check_random_state(random_state)
    draw = CellDraw.for_support(np.bincount(codes, minlength=len(names)), int(rng.integers(2**62)))
    if pieces is None:
        nodes, counts = _count_in_memory(given, landmarks, random_state, copy.n_jobs, progress)
    else:
        nodes, counts = _count_in_pieces(given, landmarks, pieces, n_neighbors, random_state, progress)
    known = given.look(draw)
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
    return Atlas(names, counts, embedding, values, fitted.model, nodes, known, support, curve, units)


@final
@dataclass(frozen=True, eq=False)
class _Given:
    """Cells to build an atlas of, in memory or not, the sample of each, and the variables that the source knows."""

    names: tuple[str, ...]
    codes: IntArray
    table: Mapping[str, Any]
    source: Cohort | FloatArray
    features: Sequence[str] | None = None

    def points(self) -> FloatArray:
        """``(n_cells, n_dimensions)``, all in memory."""
        return self.source.points() if isinstance(self.source, Cohort) else self.source

    def look(self, draw: CellDraw) -> Features:
        """Look once at all values, and draw cells meanwhile."""
        if isinstance(self.source, Cohort):
            return Features.of_cohort(self.source, draw)
        draw.add(self.source, self.codes)
        return Features.of_points(self.source, self.features)


def _read(source: Any, labels: npt.ArrayLike | None, features: Sequence[str] | None) -> _Given:
    """Return what an atlas is to be built of, or raise."""
    if isinstance(source, Cohort):
        if labels is not None or features is not None:
            raise InvalidInputError(f"a cohort alone, which knows its {argument('labels')} and features", "both")
        check_unmoved(source)
        return _Given(source.names, source.codes, _of_table(source.samples), source)
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
    return _Given(names, codes, {}, points, features)


def _count_in_memory(
    given: _Given, landmarks: Any, random_state: int, n_jobs: int | None, progress: Progress
) -> tuple[Landmarks, sp.csr_array]:
    """Return the nodes, and how many cells of each sample are at each, ``(n_samples, n_nodes)``."""
    points, codes, n_samples = given.points(), given.codes, len(given.names)
    nodes = landmarks if isinstance(landmarks, Landmarks) else None
    if nodes is None:
        rows = sp.csr_array((np.ones(codes.size), (codes, np.arange(codes.size))), shape=(n_samples, codes.size))
        placed = place_landmarks(
            points, measures_from_weights(rows, names=given.names), landmarks, random_state=random_state,
            n_jobs=n_jobs, progress=progress,
        )  # fmt: skip
        nodes = _own_nodes(points) if placed is None else placed[0]
    return nodes, count_at(nodes.assign(points, n_jobs=n_jobs), codes, (n_samples, nodes.n_landmarks))


def _count_in_pieces(
    given: _Given, landmarks: Any, pieces: InPieces, n_neighbors: int, random_state: int, progress: Progress
) -> tuple[Landmarks, sp.csr_array]:
    """Return what `_count_in_memory` does, for cells that are read in pieces."""
    if not isinstance(given.source, Cohort):
        raise InvalidInputError(f"a Cohort for {argument('pieces')}, which are read from a file", "points in memory")
    if landmarks is None or isinstance(landmarks, Landmarks):
        raise InvalidInputError(
            f"a number of {argument('landmarks')}, which are found in the pieces of the cells",
            "none" if landmarks is None else "landmarks that are there",
            f"leave {argument('landmarks')} out, or {argument('pieces')}",
        )
    need, budget = support_bytes(given.source.n_cells, given.source.n_dimensions), check_memory(pieces.memory)
    if need > budget:
        raise InvalidInputError(
            f"{argument('memory')} of at least {need / 1e6:,.0f} MB to tell what the atlas covers",
            f"{budget / 1e6:,.0f} MB", "allow more",
        )  # fmt: skip
    parameters = StudyParameters(landmarks=landmarks, n_neighbors=n_neighbors, random_state=random_state)
    with cells_counted(Request(given.source, pieces, parameters, progress)) as counted_cells:
        return counted_cells.histograms.landmarks, counted_cells.histograms.counts.astype(np.float64)


def _of_table(table: Any) -> dict[str, list[Any]]:
    return {str(name): table[name].tolist() for name in table.columns}


def _check_variables(variables: Mapping[str, Sequence[Any]], names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return variables as plain values: truths, numbers, text, None where missing."""
    return {
        name: tuple(_plain_value(name, value) for value in values)
        for name, values in sample_columns(variables, names).items()
    }


def _plain_value(name: str, value: Any) -> Any:
    """Return a value as JSON keeps it; whatever is missing, such as pandas' NA, is None."""
    if is_missing(value):
        return None
    if not isinstance(value, str | int | float | np.generic) and not hasattr(value, "isoformat"):
        raise InvalidInputError(f"numbers, text or dates as values of {quoted(name)}", type(value).__name__)
    return plain(value)


def _own_nodes(points: FloatArray) -> Landmarks:
    """Return the different cells as landmarks of themselves."""
    centers, place = distinct_points(np.asarray(points, dtype=np.float64))
    return Landmarks(centers, np.bincount(place).astype(np.int64), 0.0, {"n_points": len(points), "every_point": True})


def _whole(mapped: Mapped) -> sp.csr_array:
    """Return the counts of mapped samples: shares times cells, which are whole numbers again."""
    masses = mapped.measures.masses
    data = np.rint(masses.data * np.repeat(mapped.sizes, np.diff(masses.indptr)))
    return sp.csr_array((data, masses.indices, masses.indptr), shape=masses.shape)


def load(path: str | os.PathLike[str]) -> DiffusionEMD | Atlas:
    """Read a fitted model or an atlas that was saved, to the same bits.

    Every file is checked against its SHA-256 before it is used. A store that is damaged, that another program wrote,
    or that needs a newer heatmover, is refused with the reason.

    Parameters
    ----------
    path
        Of the folder that `DiffusionEMD.save` or `Atlas.save` made.

    Returns
    -------
    DiffusionEMD or Atlas
        Whichever was saved.

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
    if store.manifest.kind == ATLAS_SCHEMA:
        return Atlas.load(path)
    return DiffusionEMD.from_record(Record.from_store(store))


def verify(path: str | os.PathLike[str]) -> dict[str, int]:
    """Check every bit of a saved model, atlas or index in little memory, or raise.

    Parameters
    ----------
    path
        Of the folder.

    Returns
    -------
    dict
        Bytes of each file by its place in the folder.

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
