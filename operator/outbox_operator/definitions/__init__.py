"""The CustomResourceDefinitions, made from the models of all kinds. Nothing at run time uses it."""
