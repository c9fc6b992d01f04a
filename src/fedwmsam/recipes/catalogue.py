"""Every recipe, in the paper's order."""

from fedwmsam.errors import InputError, unknown
from fedwmsam.recipes.claims import CLAIMS
from fedwmsam.recipes.figures import FIGURES
from fedwmsam.recipes.recipe import SCALES, Recipe
from fedwmsam.recipes.tables import TABLES

RECIPES = {recipe.name: recipe for recipe in (*TABLES, *FIGURES, *CLAIMS)}


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(unknown("recipe", name, RECIPES))
    return RECIPES[name]


def check_scale(scale: str) -> str:
    if scale not in SCALES:
        raise InputError(unknown("scale", scale, SCALES))
    return scale
