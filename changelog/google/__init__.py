"""What all clients of Google's services need: the tokens that prove who calls. It knows no service.

    tokens.py       begin here: gets tokens, and renews them
    authorize.py    what a client takes from it
"""
