# %% [markdown]
# # A private model of a table
# Give a budget, get a model, a certificate and a report. The records are those of 569 patients, which come with
# scikit-learn.

# %%
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from discreet.linear import PrivateLogisticRegression

x, y = load_breast_cancer(return_X_y=True)
x, x_test, y, y_test = train_test_split(x, y, random_state=0)

# %% [markdown]
# Without privacy first, to know what there is to reach.

# %%
plain = LogisticRegression(C=100.0, max_iter=10_000).fit(x / x.max(0), y)
print(f"without privacy: {plain.score(x_test / x.max(0), y_test):.3f}")

# %% [markdown]
# What is declared is public: the classes. Everything else is learnt with noise, and paid for.

# %%
for epsilon in (0.5, 1.0, 4.0):
    model = PrivateLogisticRegression(epsilon=epsilon, delta=1e-5, classes=(0, 1)).fit(x, y)
    print(f"epsilon {epsilon:3g}: {model.score(x_test, y_test):.3f}")

# %% [markdown]
# The certificate holds all that is needed to compute the guarantee again.

# %%
print(model.certificate_.verify())

# %% [markdown]
# The report is for people. It carries its certificate: `discreet verify report.html`.

# %%
from discreet.report import Cover, Report

report = Report(model.certificate_, "Tumours", cover=Cover(owner="Ward 3", record="one patient"))
print(report.facts.attack)
print(f"{len(report.to_html()):,} letters of HTML")
