# A mixed model by lme4: Rscript lme4.R FOLDER FORMULA
# FOLDER has train.csv and new.csv; predictions of the latter go to predicted.csv.
suppressMessages(library(lme4))
arguments <- commandArgs(TRUE)
read <- function(name) {
  rows <- read.csv(file.path(arguments[1], name))
  factors <- intersect(names(rows), c("student", "lecturer", "at_home"))
  rows[factors] <- lapply(rows[factors], factor)
  rows
}
fit <- lmer(as.formula(arguments[2]), read("train.csv"), REML = TRUE)
predicted <- predict(fit, read("new.csv"), allow.new.levels = TRUE)
write.csv(data.frame(predicted), file.path(arguments[1], "predicted.csv"), row.names = FALSE)
