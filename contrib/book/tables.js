// Sorts and filters the tables that scripts/render-tables puts into the book. Without this script they are whole.
"use strict";

(() => {
    const MISSING = "–";

    // A cell as a number, or as its text. Thousands have commas, and units follow a blank.
    const read = cell => {
        const text = cell.textContent.trim();
        const number = /^[+-]?[\d,]+(\.\d+)?(e[+-]?\d+)?( %)?$/.test(text)
            ? Number(text.replaceAll(",", "").replace(" %", ""))
            : NaN;
        return { text, number, isMissing: text === MISSING };
    };

    // Numbers before texts, and missing ones last in both directions.
    const compare = (left, right, sign) => {
        if (left.isMissing || right.isMissing) {
            return left.isMissing - right.isMissing;
        }
        const areNumbers = [left, right].map(one => !Number.isNaN(one.number));
        if (areNumbers[0] && areNumbers[1]) {
            return sign * (left.number - right.number);
        }
        if (areNumbers[0] !== areNumbers[1]) {
            return areNumbers[0] ? -1 : 1;
        }
        return sign * left.text.localeCompare(right.text, "en", { numeric: true });
    };

    const sort = (table, header, column) => {
        const isRising = header.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) {
            other.removeAttribute("aria-sort");
        }
        header.setAttribute("aria-sort", isRising ? "ascending" : "descending");
        const body = table.tBodies[0];
        const rows = Array.from(body.rows, row => ({ row, key: read(row.cells[column]) }));
        rows.sort((left, right) => compare(left.key, right.key, isRising ? 1 : -1));
        body.append(...rows.map(one => one.row));
    };

    // Every word must be somewhere in the row.
    const filter = (table, words, count) => {
        let shown = 0;
        for (const row of table.tBodies[0].rows) {
            const text = row.textContent.toLowerCase();
            row.hidden = !words.every(word => text.includes(word));
            shown += row.hidden ? 0 : 1;
        }
        count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
    };

    const equip = table => {
        Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
            const button = document.createElement("button");
            button.type = "button";
            button.append(...header.childNodes);
            button.addEventListener("click", () => sort(table, header, column));
            header.append(button);
        });
        const bar = document.createElement("p");
        const input = document.createElement("input");
        const count = document.createElement("span");
        input.type = "search";
        input.placeholder = "Filter rows";
        input.setAttribute("aria-label", "Filter rows");
        // mdBook takes letters for its own shortcuts.
        input.addEventListener("keydown", event => event.stopPropagation());
        input.addEventListener("input", () => filter(table, input.value.toLowerCase().split(/\s+/), count));
        bar.className = "data-table-bar";
        bar.append(input, " ", count);
        filter(table, [], count);
        table.closest(".data-table").prepend(bar);
    };

    document.querySelectorAll(".data-table table").forEach(equip);
})();
