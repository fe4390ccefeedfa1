#!/bin/sh
# Starts drivers and executors of Spark on Kubernetes: Spark runs the image with the argument
# `driver` or `executor`, and describes an executor in variables. Other arguments are a command to
# run, as in docker-compose.yml.
set -eu

case "${1-}" in
  driver)
    shift
    exec spark-submit --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    shift
    class_path="${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}"
    set -- \
      "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "$class_path$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME" "$@"
    # An option may contain blanks, so each is put in front of the others as one word.
    count=$(env | grep -c '^SPARK_JAVA_OPT_[0-9]*=' || true)
    while [ "$count" -gt 0 ]; do
      count=$((count - 1))
      eval "option=\${SPARK_JAVA_OPT_$count-}"
      [ -z "$option" ] || set -- "$option" "$@"
    done
    exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@"
    ;;
  *)
    exec "$@"
    ;;
esac
