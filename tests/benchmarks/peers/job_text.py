"""Job files as dictionaries: protobuf's text format, without its schema.

A field is a number, a string, an enum's name or a dictionary; a field that stands there several times, or in
brackets, is a list. So `dlrm { top: [512, 256] }` is {"dlrm": {"top": [512, 256]}}.
"""
import re

TOKEN = re.compile(r'#[^\n]*|"(?:[^"\\]|\\.)*"|[\w.+-]+|\S')


def parse(text):
    tokens = [token for token in TOKEN.findall(text) if not token.startswith("#")]
    tokens.append("}")
    message = parse_message(tokens)
    if tokens:
        raise ValueError(f"a job file goes on after its end: {tokens[:3]}")
    return message


def parse_message(tokens):
    """Reads and removes the tokens up to the message's closing brace."""
    message = {}
    while (name := tokens.pop(0)) != "}":
        if tokens[0] == ":":
            tokens.pop(0)
        value = parse_value(tokens)
        if name in message:
            kept = message[name]
            value = (kept if isinstance(kept, list) else [kept]) + (value if isinstance(value, list) else [value])
        message[name] = value
    return message


def parse_value(tokens):
    token = tokens.pop(0)
    if token == "{":
        return parse_message(tokens)
    if token == "[":
        values = []
        while (following := tokens.pop(0)) != "]":
            if following != ",":
                tokens.insert(0, following)
                values.append(parse_value(tokens))
        return values
    if token.startswith('"'):
        return token[1:-1]
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            pass
    return Name(token)


class Name(str):
    """An enum's value, or true or false: printed without quotes."""


def to_text(message):
    """The fields of a dictionary, one a line."""
    return "".join(f"{name}{value_text(value)}\n" for name, values in message.items()
                   for value in (values if isinstance(values, list) else [values]))


def value_text(value):
    if isinstance(value, dict):
        return " {\n%s}" % to_text(value)
    return f': "{value}"' if isinstance(value, str) and not isinstance(value, Name) else f": {value}"


def listed(message, name):
    """The values of a repeated field."""
    values = message.get(name, [])
    return values if isinstance(values, list) else [values]
