"""Reads what TeraSort wrote and checks its order."""

import rows


def run(spark, options):
    found = rows.order(spark, options["input"], options)
    if found["out_of_order"]:
        raise ValueError(f"{found['out_of_order']} of {found['rows']} rows are out of order")
    if found["rows"] != options["rows"]:
        raise ValueError(f"there are {found['rows']} rows, not {options['rows']}")
    return found


if __name__ == "__main__":
    import alone
    alone.main("teravalidate", run, ["input", "rows"])
