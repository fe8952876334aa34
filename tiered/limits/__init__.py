"""How much may be asked for: at once, in a second, in size, in lifetime.

    admission.py    how many operations run at once, and how many wait
    policies.py     what the settings allow a usecase: lifetimes, sizes, and rates
    rate.py         a token bucket
"""
