"""Every example file passes `weir check` and the JSON Schema that `weir schema` prints.

    check.py PATH-OF-WEIR FILE...
"""

import json
import os
import re
import subprocess
import sys

import jsonschema
import yaml


class Yaml12(yaml.SafeLoader):
    """YAML 1.2, which Weir reads: only true and false are booleans, `on` and `off` are words."""


BOOLEAN = "tag:yaml.org,2002:bool"
Yaml12.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12.add_implicit_resolver(BOOLEAN, re.compile("^(true|false)$"), list("tf"))


def environment_for(text):
    """The environment with a placeholder for each `${NAME}` that the file asks for and nobody set."""
    env = dict(os.environ)
    for name in re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", text):
        env.setdefault(name, "postgres://user:password@localhost/weir" if name == "PG_URL" else "placeholder")
    return env


def main():
    weir, files = sys.argv[1], sys.argv[2:]
    if not files:
        sys.exit("conf: no file to check")
    printed = subprocess.run([weir, "schema"], check=True, capture_output=True, text=True)
    schema = json.loads(printed.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    failed = False
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        checked = subprocess.run([weir, "check", path], env=environment_for(text), capture_output=True, text=True)
        errors = [checked.stdout + checked.stderr] if checked.returncode else []
        # Dates become text again: YAML knows them, JSON doesn't.
        data = json.loads(json.dumps(yaml.load(text, Loader=Yaml12), default=str))
        errors += [
            "schema: {}: {}".format("/".join(map(str, error.absolute_path)), error.message)
            for error in validator.iter_errors(data)
        ]
        print("conf: {} {}".format(path, "FAILED" if errors else "ok"))
        for error in errors:
            print("  " + error.strip().replace("\n", "\n  "))
        failed = failed or bool(errors)
    # A misspelt key must not pass the schema, or the schema says nothing.
    if validator.is_valid({"listen": [], "providerz": {}}):
        sys.exit("conf: the schema accepts an unknown key")
    sys.exit(1 if failed else 0)


main()
