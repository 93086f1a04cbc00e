{{- /* Names, labels, images, rights: what several templates share. */ -}}

{{- define "outbox.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- /* At most 53 characters: -test, -edit and -driver are added to it. */ -}}
{{- define "outbox.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else -}}
{{- $name := include "outbox.name" . -}}
{{ ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 53 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "outbox.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "outbox.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The labels that identify the operator's pod; a Deployment's selector cannot be changed. */ -}}
{{- define "outbox.selector" -}}
app.kubernetes.io/name: {{ include "outbox.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- /* (list . "component" more): our labels win, because selectors and people rely on them. */ -}}
{{- define "outbox.labels" -}}
{{- $root := index . 0 -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "outbox.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/component" (index . 1)
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "outbox"
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
-}}
{{- merge $own (index . 2) $root.Values.labels | toYaml }}
{{- end }}

{{- /* Labels and annotations of an object: (list . "component" labels annotations). */ -}}
{{- define "outbox.labelled" -}}
labels:
  {{- include "outbox.labels" . | nindent 2 }}
{{- with merge (dict) (index . 3) (index . 0).Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* (list . "relay"): the image's full name. */ -}}
{{- define "outbox.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- with $root.Values.images.registry }}{{ . }}/{{ end -}}
{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The pod-security level `restricted`, and a little stricter. 65532 is the images' user. */ -}}
{{- define "outbox.podSecurity" -}}
{{- if .Values.pod.securityContext -}}
{{ toYaml .Values.pod.securityContext }}
{{- else -}}
runAsNonRoot: true
{{- if .Values.fixedIds }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}
{{- end }}

{{- define "outbox.containerSecurity" -}}
{{- if .Values.pod.containerSecurityContext -}}
{{ toYaml .Values.pod.containerSecurityContext }}
{{- else -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
{{- end }}

{{- /* Where the operator's pod and the test's pod may run. */ -}}
{{- define "outbox.placement" -}}
{{- with .Values.pod.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "outbox.driverRole" -}}
{{ include "outbox.fullname" . }}-driver
{{- end }}

{{- /* All that a replay's driver may do, in its replay's namespace, as long as the replay exists. */ -}}
{{- define "outbox.driverRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
{{- end }}

{{- /* All that the operator may do; in a ClusterRole, or in a Role per namespace. */ -}}
{{- define "outbox.rules" -}}
# Our kinds. Only people create them. The operator patches a relay to set the finalizer of
# deletionPolicy: Delete, and deletes a replay after its ttlSecondsAfterFinished.
- apiGroups: [outbox.dev]
  resources: [outboxrelays]
  verbs: [get, list, watch, patch]
- apiGroups: [outbox.dev]
  resources: [outboxreplays]
  verbs: [get, list, watch, delete]
- apiGroups: [outbox.dev]
  resources: [outboxrelays/status, outboxreplays/status]
  verbs: [patch]
# Children name their relay or replay as an owner whose deletion waits for them (blockOwnerDeletion).
- apiGroups: [outbox.dev]
  resources: [outboxrelays/finalizers, outboxreplays/finalizers]
  verbs: [update]
# Children. Server-side apply is a patch that also creates. Children are deleted with their owner; the
# operator deletes only those that a relay no longer needs or has replaced, a replay's attempts when it
# is suspended, and its account and rights when it is over.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# An attempt at a replay, if there is a Spark operator: created once, never changed.
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, list, watch, create, delete]
# A replay's driver may create its executors: through this one role, and only while there is a driver.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ ternary "roles" "clusterroles" (not (empty .Values.watch.namespaces)) }}]
  resourceNames: [{{ include "outbox.driverRole" . }}]
  verbs: [bind]
# The state of the pods, and their addresses.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Whether a Secret that a relay names exists and has changed: only metadata is requested, one by one.
# There is no smaller right than get; list and watch would show all Secrets.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* (list "variables.spec" "pod.env"): CEL that is true if the field is present. */ -}}
{{- define "outbox.present" -}}
{{- $at := index . 0 -}}
{{- $tests := list -}}
{{- range $name := splitList "." (index . 1) -}}
{{- $at = printf "%s.%s" $at $name -}}
{{- $tests = append $tests (printf "has(%s)" $at) -}}
{{- end -}}
{{ join " && " $tests }}
{{- end }}

{{- /* CEL that is true if the field is absent or empty, as defaults make it. For spec.pod: if all fields
in it are; an empty security context counts as set, because it means none, which allows more than the
default. */ -}}
{{- define "outbox.unset" -}}
{{- $whole := printf "%s.%s" (index . 0) (index . 1) -}}
{{- $empty := ternary (printf "%s.all(name, !name.endsWith('ecurityContext') && size(%s[name]) == 0)" $whole $whole) (printf "size(%s) == 0" $whole) (eq (index . 1) "pod") -}}
!({{ include "outbox.present" . }}) || {{ $empty }}
{{- end }}
