{{/* The pod of a TaskManager, in either mode. */}}
{{- define "sluice.pod" -}}
{{- $root := . }}
{{- $daemonSet := eq .Values.mode "DaemonSet" }}
{{- $memory := include "sluice.memory" . | fromJson }}
{{- $config := include "sluice.config" . | fromJson }}
{{- $volumes := include "sluice.dataVolumes" . | fromJsonArray }}
metadata:
  labels:
    {{- include "sluice.selectorLabels" . | nindent 4 }}
    {{- with mergeOverwrite (dict) .Values.commonLabels .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # New settings take effect with a new pod.
    checksum/config: {{ include "sluice.toml" $config | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "sluice.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "sluice.gracePeriod" . }}
  {{- if and $daemonSet .Values.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $daemonSet }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $own := dict "labelSelector" (dict "matchLabels" (include "sluice.selectorLabels" $ | fromYaml)) }}
    - {{ mustMergeOverwrite (ternary (dict) $own (hasKey . "labelSelector")) . | toYaml | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- if and $daemonSet .Values.hostPaths.prepare }}
  initContainers:
    {{- include "sluice.prepare" . | nindent 4 }}
  {{- end }}
  containers:
    - name: taskmanager
      image: {{ include "sluice.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [taskmanager]
      env:
        # The image sets some of these too, and variables win over the file.
        - name: SLUICE_CONFIG
          value: /etc/sluice/taskmanager.toml
        - name: SLUICE_DATA_DIRECTORIES
          value: {{ join ":" $config.storage.data_directories | quote }}
        - name: SLUICE_MEMORY_DIRECTORY
          value: {{ default "none" $config.storage.memory_directory }}
        - name: SLUICE_SOCKET_PATH
          value: {{ default "none" $config.transport.socket_path }}
        # For `sluice drain` and other commands in this container.
        - name: SLUICE_HTTP_SOCKET_PATH
          value: {{ default "none" $config.http.http_socket_path }}
        {{- with $config.auth.cluster_secret_files }}
        - name: SLUICE_CLUSTER_SECRET_FILES
          value: {{ join "," . | quote }}
        {{- end }}
        {{- if not $config.transport.advertised_host }}
        {{- if $daemonSet }}
        - name: SLUICE_ADVERTISED_HOST
          valueFrom:
            fieldRef:
              fieldPath: {{ ternary "status.hostIP" "status.podIP" .Values.hostNetwork }}
        {{- else }}
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: SLUICE_ADVERTISED_HOST
          value: $(POD_NAME).{{ include "sluice.serviceHost" . }}
        {{- end }}
        {{- end }}
        {{- if not (or $daemonSet (hasKey $config.auth "address_aliases")) }}
        # Others also find the pod by its address, which the name of the Service resolves to.
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: SLUICE_ADDRESS_ALIASES
          value: {{ include "sluice.aliases" . }}
        {{- end }}
        - name: SLUICE_NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
        {{- if .Values.zone }}
        - name: SLUICE_ZONE
          value: {{ .Values.zone | quote }}
        {{- else if .Values.zoneLabel }}
        - name: SLUICE_ZONE
          valueFrom:
            fieldRef:
              fieldPath: {{ printf "metadata.labels['%s']" .Values.zoneLabel | quote }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- range $process, $port := include "sluice.dataPorts" . | fromJsonArray }}
        - name: {{ ternary "data" (printf "data-%d" $process) (eq $process 0) }}
          containerPort: {{ $port }}
          protocol: TCP
        {{- end }}
        - name: http
          containerPort: {{ .Values.ports.http }}
          protocol: TCP
      # The data port opens when the stored map outputs are adopted. That can take as long as
      # reading all disks once.
      startupProbe:
        tcpSocket:
          port: data
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add (int .Values.startupProbe.timeoutSeconds) 4) 5 }}
      # Fails while the TaskManager drains or is full: it gets no new work, and still serves readers.
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
        periodSeconds: 5
        timeoutSeconds: 7
        failureThreshold: 2
      # Fails when the data path does not answer within http_answer_timeout_seconds, 5 by default.
      livenessProbe:
        httpGet:
          path: /healthz
          port: http
        periodSeconds: 10
        timeoutSeconds: 7
        failureThreshold: 3
      lifecycle:
        preStop:
          exec:
            command:
              {{- if eq (include "sluice.migrate" .) "whenCordoned" }}
              - python
              - /etc/sluice/pre_stop.py
              - {{ include "sluice.migrateSeconds" . | quote }}
              - {{ .Values.drain.waitSeconds | quote }}
              {{- else if eq (include "sluice.migrate" .) "always" }}
              - sluice
              - drain
              - --migrate
              - --wait
              - {{ include "sluice.migrateSeconds" . | quote }}
              {{- else }}
              - sluice
              - drain
              - --wait
              - {{ .Values.drain.waitSeconds | quote }}
              {{- end }}
      resources:
        requests:
          cpu: {{ .Values.cpu.request | quote }}
          memory: {{ printf "%dMi" (int $memory.total) }}
        limits:
          {{- with .Values.cpu.limit }}
          cpu: {{ . | quote }}
          {{- end }}
          memory: {{ printf "%dMi" (int $memory.total) }}
      {{- with .Values.containerSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: config
          mountPath: /etc/sluice
          readOnly: true
        {{- if not .Values.auth.allowAnonymous }}
        - name: secret
          mountPath: /run/sluice-secret
          readOnly: true
        {{- end }}
        {{- if include "sluice.tls.isOn" . }}
        - name: tls
          mountPath: /run/sluice-tls
          readOnly: true
        {{- end }}
        {{- if eq (include "sluice.migrate" .) "whenCordoned" }}
        - name: api-access
          mountPath: /run/sluice-api
          readOnly: true
        {{- end }}
        {{- range $volumes }}
        - name: {{ .name }}
          mountPath: {{ .path }}
        {{- end }}
        {{- if include "sluice.memoryTier" . }}
        - name: memory
          mountPath: {{ ternary "/dev/shm/sluice" "/dev/shm" $daemonSet }}
        {{- end }}
        {{- if $daemonSet }}
        - name: run
          mountPath: /run/sluice
        {{- end }}
        - name: tmp
          mountPath: /tmp
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "sluice.fullname" . }}
    {{- if not .Values.auth.allowAnonymous }}
    - name: secret
      secret:
        secretName: {{ include "sluice.secretName" . }}
        # The TaskManager refuses a secret that other users can read.
        defaultMode: 0440
    {{- end }}
    {{- if include "sluice.tls.isOn" . }}
    - name: tls
      secret:
        secretName: {{ include "sluice.tls.secretName" . }}
        defaultMode: 0440
    {{- end }}
    {{- if eq (include "sluice.migrate" .) "whenCordoned" }}
    # For pre_stop.py only, which asks whether the node is cordoned.
    - name: api-access
      projected:
        defaultMode: 0440
        sources:
          - serviceAccountToken:
              path: token
          - configMap:
              name: kube-root-ca.crt
              items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
    {{- range $volume := $volumes }}
    {{- with $volume.volume }}
    - {{ toYaml (merge (dict "name" $volume.name) .) | nindent 6 | trim }}
    {{- end }}
    {{- end }}
    {{- if $daemonSet }}
    - name: run
      hostPath:
        path: {{ .Values.hostPaths.run }}
        type: DirectoryOrCreate
    {{- end }}
    {{- if include "sluice.memoryTier" . }}
    - name: memory
      {{- if $daemonSet }}
      hostPath:
        path: {{ .Values.hostPaths.memory }}
        type: DirectoryOrCreate
      {{- else }}
      emptyDir:
        medium: Memory
        sizeLimit: {{ printf "%dMi" (int $memory.shm) }}
      {{- end }}
    {{- end }}
    - name: tmp
      emptyDir:
        medium: Memory
        sizeLimit: 16Mi
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* The addresses of a pod, one for each data process. */}}
{{- define "sluice.aliases" -}}
{{- range $process, $port := include "sluice.dataPorts" . | fromJsonArray }}
{{- if $process }},{{ end }}$(POD_IP):{{ $port }}
{{- end }}
{{- end }}

{{/* Give directories of the node to the TaskManager's user, as fsGroup does for other volumes. */}}
{{- define "sluice.prepare" -}}
{{- $context := .Values.podSecurityContext | default dict }}
{{- if not (and $context.runAsUser $context.runAsGroup) }}
{{- fail "hostPaths.prepare: set podSecurityContext.runAsUser and runAsGroup, or hostPaths.prepare=false" }}
{{- end }}
- name: prepare
  image: {{ include "sluice.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -euc]
  args:
    - |
      for directory; do
        if [ "$(stat -c %u "$directory")" = 0 ]; then
          chmod 0750 "$directory"
          chown {{ int64 $context.runAsUser }}:{{ int64 $context.runAsGroup }} "$directory"
        fi
      done
    - prepare
    - /run/sluice
    {{- if include "sluice.memoryTier" . }}
    - /dev/shm/sluice
    {{- end }}
    {{- range include "sluice.dataVolumes" . | fromJsonArray }}
    - {{ .path }}
    {{- end }}
  securityContext:
    runAsNonRoot: false
    runAsUser: 0
    runAsGroup: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [CHOWN]
  resources:
    requests:
      cpu: 10m
      memory: 16Mi
    limits:
      memory: 64Mi
  volumeMounts:
    - name: run
      mountPath: /run/sluice
    {{- if include "sluice.memoryTier" . }}
    - name: memory
      mountPath: /dev/shm/sluice
    {{- end }}
    {{- range include "sluice.dataVolumes" . | fromJsonArray }}
    - name: {{ .name }}
      mountPath: {{ .path }}
    {{- end }}
{{- end }}
