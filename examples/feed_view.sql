-- The references that a change feed of `tiered feed run` shows at its frontier. Three relations are needed first, each
-- without repeated rows: feed_update (object, blob, t, diff), feed_interval (begins, ends), feed_count (t, declared).
-- `examples/feed_duckdb.py` and `examples/feed_spark.py` make them.
--
-- The intervals of this writer are a chain from 0. So progress is whole up to the first end at which no other interval
-- begins. And a time is complete only when as many updates are there as its progress declares.
WITH whole AS (
    SELECT min(ends) AS t FROM feed_interval
    WHERE ends NOT IN (SELECT begins FROM feed_interval) AND EXISTS (SELECT 1 FROM feed_interval WHERE begins = 0)
), short AS (
    SELECT min(c.t) AS t
    FROM feed_count c LEFT JOIN (SELECT t, count(*) AS came FROM feed_update GROUP BY t) u ON u.t = c.t
    WHERE c.declared > coalesce(u.came, 0)
), frontier AS (
    SELECT CASE WHEN short.t < whole.t THEN short.t ELSE coalesce(whole.t, 0) END AS t FROM whole CROSS JOIN short
)
SELECT frontier.t AS frontier, live.object, live.blob
FROM frontier LEFT JOIN (
    SELECT object, blob FROM feed_update WHERE t < (SELECT t FROM frontier) GROUP BY object, blob HAVING sum(diff) > 0
) live ON TRUE
ORDER BY live.object
