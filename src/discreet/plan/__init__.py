"""All that is decided before data is touched: recipes, stages, plans, and tables of plans to choose from."""

from discreet.plan.explore import explore, records_needed
from discreet.plan.plan import Plan
from discreet.plan.recipe import Recipe, StagedRecipe
from discreet.plan.stage import add_sampling

__all__ = ["Plan", "Recipe", "StagedRecipe", "add_sampling", "explore", "records_needed"]
