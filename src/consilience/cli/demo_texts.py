"""Texts of the files that demonstrations write: studies and sites, over rows and columns."""

from __future__ import annotations

STUDY = """\
# {about}
# All parties share this file. Run it again with: consilience run {file}

name = "demo-{name}"
method = "{method}"
partition = "rows"
seed = 20240229

[parameters]
{parameters}
[data]
{remark}
{role} = [
{columns}
]
{roles}
[preparation]
missing = "{missing}"
standardize = "{standardize}"

[sites]
names = [{sites}]
"""

SITE = """\
# Stays at the site: where its table is, and what may leave.

name = "{site}"
home = "../homes/{site}"

[source]
path = "../data/{site}.csv"

[columns]
# What studies may name, and as what.
offered = {{ {offered} }}

[policy]
preset = "{preset}"
data_id = "demo-{site}"
{consent}"""

FOREIGN_MODELS = """\
# Models that the other sites fitted may be asked how well they do on the rows here.
foreign_models = true
"""


OVER_COLUMNS = """\
# {about}
# All parties share this file. Run it again with: consilience run {file}

name = "demo-{method}"
method = "{method}"
partition = "columns"
seed = 20240229

[parameters]
{parameters}
[data]
# Rows are matched by this id. Each site names its own columns in its own file, and nobody else's.
id = "patient"

[preparation]
missing = "refuse"
standardize = "site"

[sites]
names = [{sites}]
roles = {{ clinic = "initiator" }}
"""

SITES_OVER_COLUMNS = {
    "clinic": """\
# Stays at the clinic: where its table is, and what may leave.
# It holds the response, so it is the one that asks. Patients without a diagnosis are predicted.

name = "clinic"
home = "../homes/clinic"

[source]
path = "../data/clinic.csv"

[columns]
features = [
{features}
]
target = "malignant"

[partners]
# The same file at both sites: ids are matched by hashes under it.
key = "../keys/partner.key"

[policy]
preset = "consortium"
data_id = "demo-clinic"
# The laboratory may see the diagnoses of the patients that both have.
share_response = true
# The coordinator is this party, and gets its coefficients by name.
share_names = true
# Every fit tells the laboratory some combinations of these columns. Without this line all but one
# may come to be known: enough for one fit, and a second one with other settings ends at once.
max_revealed_rank = "full"
""",
    "laboratory": """\
# Stays at the laboratory: where its table is, and what may leave.

name = "laboratory"
home = "../homes/laboratory"

[source]
path = "../data/laboratory.csv"

[columns]
features = [
{features}
]
# Limits that hold by what is measured, agreed before anybody looked. Noise has a price only with
# them; a value beyond them is cut.
bounds = {{ worst_compactness = [0.0, 1.2], worst_concavity = [0.0, 1.5], \
worst_concave_points = [0.0, 0.3] }}

[partners]
key = "../keys/partner.key"

[policy]
preset = "consortium"
data_id = "demo-laboratory"
# Noisy sketches may leave, at this price in all: three different ones at 8. The same one again, for
# whichever question, costs nothing.
noised = true
max_epsilon = 24.0
# All combinations of the columns may come to be known: standard errors and intervals need it.
# Without this line all but one may, and the training stops short of the best fit.
max_revealed_rank = "full"
""",
}
