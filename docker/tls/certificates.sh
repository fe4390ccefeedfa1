#!/bin/sh
# Makes an authority, a certificate for each TaskManager and one for Spark, and the settings of
# Spark with its secret, each in the volume of those who use it. The service `certificates` of
# docker-compose.tls.yml runs this at each start. What is there stays, but a certificate that ends
# within a month is renewed.
set -eu
umask 077

OUT=${1:-/run/certificates}
SETTINGS=${2:-/etc/spark}
EXTRA=${3:-/etc/sluice-tls/spark.conf}
DAYS=${CERTIFICATE_DAYS:-365}
MONTH_SECONDS=2592000

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A process that reads the target sees the whole old file or the whole new one.
place() { # FILE TARGET
  cp "$1" "$2.new"
  mv "$2.new" "$2"
}

new_key() { # FILE
  openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

authority() {
  if [ -s "$OUT/authority/authority.pem" ]; then
    return
  fi
  new_key "$OUT/authority/key.pem"
  openssl req -x509 -new -key "$OUT/authority/key.pem" -days 3650 -subj "/CN=Sluice compose" \
    -out "$work/authority.pem"
  place "$work/authority.pem" "$OUT/authority/authority.pem"
}

is_good() { # CERTIFICATE
  openssl verify -CAfile "$OUT/authority/authority.pem" "$1" &&
    openssl x509 -checkend "$MONTH_SECONDS" -noout -in "$1"
}

certificate() { # NAME USES
  if is_good "$OUT/$1/certificate.pem" >/dev/null 2>&1; then
    return
  fi
  new_key "$work/key.pem"
  openssl req -new -key "$work/key.pem" -subj "/CN=$1" -out "$work/request.pem"
  cat >"$work/extensions" <<END
subjectAltName = DNS:$1
extendedKeyUsage = $2
basicConstraints = CA:FALSE
END
  openssl x509 -req -in "$work/request.pem" -extfile "$work/extensions" -days "$DAYS" \
    -CA "$OUT/authority/authority.pem" -CAkey "$OUT/authority/key.pem" -out "$work/certificate.pem"
  cp "$OUT/authority/authority.pem" "$work/authority.pem"
  # The certificate comes last: without it, all are made again.
  for file in authority key certificate; do
    place "$work/$file.pem" "$OUT/$1/$file.pem"
  done
}

# Spark reads one file, so each has all settings. Those of the repository may have changed.
spark_settings() {
  if [ ! -s "$OUT/spark-settings/secret" ]; then
    openssl rand -hex 32 >"$work/secret"
    place "$work/secret" "$OUT/spark-settings/secret"
  fi
  for file in "$SETTINGS"/*.conf; do
    {
      cat "$file" "$EXTRA"
      echo "spark.authenticate.secret     $(cat "$OUT/spark-settings/secret")"
    } >"$work/settings"
    place "$work/settings" "$OUT/spark-settings/$(basename "$file")"
  done
}

authority
for name in taskmanager-1 taskmanager-2; do
  certificate "$name" "serverAuth, clientAuth"
done
# With this one nobody can pose as a TaskManager.
certificate spark clientAuth
spark_settings
