{{/* Where the certificates come from: none, generated, secret or certManager. */}}
{{- define "sluice.tls.source" -}}
{{- default (ternary "none" "generated" (eq .Values.mode "DaemonSet")) .Values.tls.source }}
{{- end }}

{{- define "sluice.tls.isOn" -}}
{{- if ne (include "sluice.tls.source" .) "none" }}true{{ end }}
{{- end }}

{{/* The Secret with the certificate of the TaskManagers. */}}
{{- define "sluice.tls.secretName" -}}
{{- if eq (include "sluice.tls.source" .) "secret" }}
{{- required "tls.secretName: name the Secret with tls.crt, tls.key and ca.crt, or choose another tls.source" .Values.tls.secretName }}
{{- else }}
{{- include "sluice.fullname" . }}-tls
{{- end }}
{{- end }}

{{/* The names in a certificate of all TaskManagers, as a JSON list. */}}
{{- define "sluice.tls.names" -}}
{{- $host := include "sluice.serviceHost" . }}
{{- $names := list $host (printf "*.%s" $host) (printf "%s.%s" $host .Values.clusterDomain) (printf "*.%s.%s" $host .Values.clusterDomain) "localhost" }}
{{- concat $names .Values.tls.extraNames | toJson }}
{{- end }}

{{/*
Whether TaskManagers check the host names of others. Those of a DaemonSet advertise addresses of
nodes, which certificates of the chart do not have. An authority of the chart signs one certificate
only, so the check would add nothing.
*/}}
{{- define "sluice.tls.checksHostName" -}}
{{- $default := ternary "false" "true" (or (eq .Values.mode "DaemonSet") (eq (include "sluice.tls.source" .) "generated")) }}
{{- eq (default $default (toString .Values.tls.checkHostName)) "true" }}
{{- end }}

{{/* Whether clients must show a certificate. The chart does not generate one for them. */}}
{{- define "sluice.tls.requiresClientCertificate" -}}
{{- $default := ternary "false" "true" (eq (include "sluice.tls.source" .) "generated") }}
{{- eq (default $default (toString .Values.tls.requireClientCertificate)) "true" }}
{{- end }}

{{/* Settings of [transport] for TLS, as JSON. */}}
{{- define "sluice.tls.config" -}}
{{- $config := dict }}
{{- if include "sluice.tls.isOn" . }}
{{- $config = dict
  "tls_enabled" true
  "tls_certificate_file" "/run/sluice-tls/tls.crt"
  "tls_key_file" "/run/sluice-tls/tls.key"
  "tls_ca_file" "/run/sluice-tls/ca.crt"
  "tls_check_host_name" (eq (include "sluice.tls.checksHostName" .) "true")
  "tls_require_client_certificate" (eq (include "sluice.tls.requiresClientCertificate" .) "true") }}
{{- end }}
{{- toJson $config }}
{{- end }}
