"""The CustomResourceDefinitions, generated from the models of all kinds. Not used at run time."""
