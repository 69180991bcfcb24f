"""Checks of the reference itself: is it a function of its inputs and weights?"""
