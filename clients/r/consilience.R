# Consilience from R: runs the program `consilience`, and reads what it says as JSON.
#
#   source("consilience.R")
#   run <- consilience_run("study.toml")
#   run                        # the answer, and notes
#   consilience_table(run)     # its main table, as a data frame
#   run$result                 # every figure, by name
#
# Needs R 4.0 or later, the package jsonlite, and the program on the PATH or named by
# options(consilience.program = "/path/to/consilience").

# Run a study. `study`: path of the study file. `out`: run directory, a new one in ./runs unless given.
# `sites`: folder of the site files. `seed`: public seed. `resume`: go on with the run in `out`.
# `options`: further options, such as c("--engine", "folder", "--folder", "shared").
# Returns a list of class "consilience_run". Stops with the sentence of the program, as a condition
# of class "consilience_error" whose `code` is the program's exit code.
consilience_run <- function(study, out = NULL, sites = NULL, seed = NULL, resume = FALSE,
                            options = character()) {
  words <- c("run", path.expand(study), "--json", "--quiet")
  if (!is.null(out)) words <- c(words, "--out", path.expand(out))
  if (!is.null(sites)) words <- c(words, "--sites", path.expand(sites))
  # Seeds have up to 19 digits, more than a number of R holds: they may be given as text.
  if (!is.null(seed)) words <- c(words, "--seed", format(seed, scientific = FALSE, trim = TRUE))
  if (resume) words <- c(words, "--resume")
  .consilience_read(c(words, options))
}

# Read a finished run: its directory, or its id in ./runs.
consilience_show <- function(run) .consilience_read(c("show", path.expand(run), "--json"))

# A table of a run as a data frame: the main one, or another one of names(run$tables).
consilience_table <- function(run, name = names(run$tables)[1]) {
  table <- run$tables[[name]]
  if (is.null(table)) {
    stop("the run has no table '", name, "', or it is too large to be printed: ",
         "'consilience show RUN --tables DIR' writes all of them")
  }
  # A column in which every cell is missing comes as a list of nothing.
  columns <- lapply(table, function(column) if (is.list(column)) unlist(.gaps(column)) else column)
  as.data.frame(columns, check.names = FALSE, stringsAsFactors = FALSE)
}

# Open the report of a run in the browser; returns its path.
consilience_report <- function(run, open = interactive()) {
  if (is.null(run$report)) stop("the run has no report: consilience report ", run$directory)
  if (open) utils::browseURL(paste0("file://", normalizePath(run$report)))
  invisible(run$report)
}

# Run any command of the program, such as consilience_call("check", "study.toml"); returns its lines.
consilience_call <- function(...) .consilience(c(...))

print.consilience_run <- function(x, ...) {
  cat(strwrap(x$summary), sep = "\n")
  for (note in x$notes) cat(strwrap(note, initial = "- ", prefix = "  "), sep = "\n")
  cat("Run ", x$run, ", seed ", x$seed, ", in ", x$directory, "\n", sep = "")
  invisible(x)
}

.consilience_read <- function(words) {
  text <- paste(.consilience(words), collapse = "\n")
  run <- jsonlite::fromJSON(text, simplifyDataFrame = FALSE, bigint_as_char = TRUE)
  structure(run, class = "consilience_run")
}

.consilience <- function(words) {
  program <- getOption("consilience.program", "consilience")
  if (!nzchar(Sys.which(program))) {
    stop(structure(
      class = c("consilience_error", "error", "condition"),
      list(
        message = paste0("'", program, "' is not on the PATH: set options(consilience.program = ...)"),
        call = NULL, code = 127L
      )
    ))
  }
  out <- tempfile()
  err <- tempfile()
  on.exit(unlink(c(out, err)))
  code <- suppressWarnings(system2(
    program, shQuote(words),
    stdout = out, stderr = err, stdin = nullfile() # nobody sees a question
  ))
  if (code != 0) {
    said <- if (file.exists(err)) readLines(err, warn = FALSE, encoding = "UTF-8") else character()
    said <- sub("^Error: ", "", utils::tail(said[nzchar(said)], 1))
    if (!length(said)) said <- paste0("'", program, "' ended with ", code, " and said nothing")
    stop(structure(
      class = c("consilience_error", "error", "condition"),
      list(message = said, call = NULL, code = code)
    ))
  }
  readLines(out, warn = FALSE, encoding = "UTF-8")
}

.gaps <- function(column) lapply(column, function(cell) if (is.null(cell)) NA else cell)
