# Rival fits of benchmarks/latent_class.py: Rscript latent_class.R DATA.csv OUT.csv K REPEATS mixed|no
# DATA.csv: entity, train (1 or 0), y, x1, x2, ...; OUT.csv: one column of predictions a model.
# Needs the Debian packages r-base-core, r-cran-flexmix and r-cran-lme4.
suppressPackageStartupMessages({ library(flexmix); library(lme4) })
given <- commandArgs(trailingOnly = TRUE)
data <- read.csv(given[1])
classes <- as.integer(given[3])
features <- grep("^x", names(data), value = TRUE)
train <- data[data$train == 1, ]
design <- as.matrix(cbind(1, data[features]))
sum_of <- paste(features, collapse = " + ")
out <- data.frame(row = seq_len(nrow(data)))
said <- function(name, seconds, extra = "") cat(name, seconds, extra, "\n")

# Predictions under the posterior of the entity's class, and the labels.
mixture <- function(fit) {
  post <- posterior(fit)[!duplicated(train$entity), , drop = FALSE]
  names <- train$entity[!duplicated(train$entity)]
  weights <- parameters(fit)[seq_len(ncol(design)), , drop = FALSE]
  rows <- match(data$entity, names)
  list(mean = rowSums((design %*% weights) * post[rows, , drop = FALSE]),
       label = max.col(post[rows, , drop = FALSE], ties.method = "first"))
}

model <- as.formula(paste("y ~", sum_of, "| entity"))
control <- list(minprior = 0, iter.max = 500)
repeats <- as.integer(given[4])
best <- NULL
for (r in seq_len(repeats)) {
  set.seed(r)
  seconds <- system.time(
    fit <- flexmix(model, data = train, k = classes, control = control)
  )[["elapsed"]]
  if (r == 1) {
    found <- mixture(fit)
    out$flexmix <- found$mean
    out$flexmix_label <- found$label
    said("flexmix", seconds, fit@iter)
  }
  total <- if (r == 1) seconds else total + seconds
  if (is.null(best) || logLik(fit) > logLik(best)) best <- fit
}
found <- mixture(best)
out$flexmix_best <- found$mean
out$flexmix_best_label <- found$label
said("flexmix_best", total, repeats)

if (given[5] == "mixed") {
  model <- as.formula(paste("y ~", sum_of, "+ (", sum_of, "| entity)"))
  seconds <- system.time(
    fit <- suppressWarnings(suppressMessages(lmer(model, data = train)))
  )[["elapsed"]]
  out$lmer <- predict(fit, newdata = data, allow.new.levels = TRUE)
  said("lmer", seconds)
}
write.csv(out, given[2], row.names = FALSE)
