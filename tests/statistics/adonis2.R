# Makes adonis2.json, which test_designs.py reads: distances, variables of samples, and what R's vegan finds of designs.
#
#     Rscript tests/statistics/adonis2.R tests/statistics/adonis2.json
#
# Needs Debian's r-cran-vegan (2.6-4 made the file) and r-cran-jsonlite; the tests need neither.

suppressMessages({
  library(vegan)
  library(jsonlite)
})

set.seed(17)
n <- 24
samples <- data.frame(
  group = rep(c("case", "control"), n / 2),
  batch = rep(c("b1", "b2", "b3"), each = n / 3),
  site = rep(c("north", "south", "east", "west"), c(11, 7, 4, 2)),
  patient = rep(sprintf("p%02d", seq_len(n / 2)), each = 2),
  age = round(runif(n, 20, 80), 1),
  dose = sample(0:9, n, replace = TRUE),
  stringsAsFactors = TRUE
)
counts <- matrix(rpois(n * 12, 6), n) +
  4 * outer(as.numeric(samples$group == "case"), 1:12 == 3) +
  3 * outer(as.numeric(samples$batch == "b2"), 1:12 == 5) +
  outer(round(samples$age / 20), 1:12 == 7)
# Bray-Curtis, which no Euclidean space holds; rounded, so that the file has the very numbers that R works with.
distances <- round(as.matrix(vegdist(counts)), 6)

formulas <- c(
  "group", "group + batch", "group + age", "group * batch", "site + group", "age", "age + dose",
  "group + batch + age", "site + age", "patient + group", "age * group", "batch + age * dose", "group:batch"
)

rows <- function(formula, by) {
  set.seed(1)
  strata <- if (formula == "patient + group") samples$patient else NULL
  found <- adonis2(
    as.formula(paste("as.dist(distances) ~", formula)), data = samples, by = by, permutations = 9, strata = strata
  )
  lapply(seq_len(nrow(found)), function(i) {
    list(
      term = rownames(found)[i], df = found$Df[i], sum_of_squares = found$SumOfSqs[i],
      r_squared = found$R2[i], f = found$F[i]
    )
  })
}

designs <- lapply(formulas, function(formula) {
  list(formula = formula, terms = rows(formula, "terms"), margin = rows(formula, "margin"))
})

path <- commandArgs(trailingOnly = TRUE)[1]
made <- list(
  vegan = as.character(packageVersion("vegan")), distances = distances,
  samples = lapply(samples, function(x) if (is.factor(x)) as.character(x) else x), designs = designs
)
write(toJSON(made, digits = I(17), auto_unbox = TRUE, na = "null", dataframe = "columns"), path)
