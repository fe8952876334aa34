"""What all clients of Google's services need: the tokens and signatures that prove who calls. It knows no service.

    tokens.py       begin here: gets tokens, and renews them
    signing.py      signs as the account that calls
    authorize.py    what a client takes from it
"""
