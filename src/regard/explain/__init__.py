"""Why a model predicts what it does: attribution methods, their faithfulness, the roles of heads."""
