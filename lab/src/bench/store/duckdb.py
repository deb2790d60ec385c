"""Asks DuckDB a ready question about the Parquet files of a store: FOLDER QUESTION ROWS [ADDRESS].

Writes the seconds of the query, and its rows as JSON. The interpreter and the import of DuckDB are not counted.
"""

import json
import sys
import time

import duckdb

folder, question, rows, *address = sys.argv[1:]
flows = f"read_parquet('{folder}/flows/**/*.parquet')"
sums = "count(*), sum(packets + coalesce(reverse_packets, 0)), sum(bytes + coalesce(reverse_bytes, 0)) AS bytes"
ends = (
    f"SELECT src AS e, dst AS other, bytes AS sent, coalesce(reverse_bytes, 0) AS received, * FROM {flows} "
    f"UNION ALL SELECT dst, src, coalesce(reverse_bytes, 0), bytes, * FROM {flows}"
)
by_end = "count(*), sum(sent) AS sent, sum(received) AS received"
# The first 24 bits of an IPv4 address, the first 48 of an IPv6 address.
network = (
    "CASE WHEN contains(e, ':') THEN regexp_extract(e, '^[0-9a-f]+:[0-9a-f]+:[0-9a-f]+') || '::/48' "
    "ELSE regexp_extract(e, '^[0-9]+[.][0-9]+[.][0-9]+') || '.0/24' END"
)
sql = {
    "top talkers": f"SELECT e, {by_end} FROM ({ends}) GROUP BY e ORDER BY sent DESC, 1 LIMIT {rows}",
    "top ports": f"SELECT protocol, least(src_port, dst_port), application, {sums} FROM {flows} "
    f"WHERE src_port IS NOT NULL GROUP BY 1, 2, 3 ORDER BY bytes DESC, 1, 2, 3 LIMIT {rows}",
    "by network": f"SELECT {network}, {by_end} FROM ({ends}) GROUP BY 1 ORDER BY sent DESC, 1 LIMIT {rows}",
    "over time": f"SELECT time_bucket(INTERVAL 1 HOUR, end_time) AS time, {sums} FROM {flows} GROUP BY 1 ORDER BY 1",
    "who talked to": "SELECT other, count(*), sum(received), sum(sent), min(start_time), max(end_time) "
    f"FROM ({ends}) WHERE e = $1 GROUP BY 1 ORDER BY sum(sent) + sum(received) DESC, 1 LIMIT {rows}",
}
# A progress bar would go to the standard output.
connection = duckdb.connect()
connection.execute("SET enable_progress_bar = false")
start = time.monotonic()
answer = connection.execute(sql[question], address).fetchall()
seconds = time.monotonic() - start
print(json.dumps([seconds, answer], default=str))
