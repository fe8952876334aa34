#!/bin/sh
# Prints rules.yaml as an object of the Prometheus Operator:
#   deploy/prometheus/as_prometheusrule.sh | kubectl -n tiered apply -f -
set -eu
printf 'apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: tiered, labels: {app.kubernetes.io/part-of: tiered}}\nspec:\n'
sed 's/^/  /' "$(dirname "$0")/rules.yaml"
