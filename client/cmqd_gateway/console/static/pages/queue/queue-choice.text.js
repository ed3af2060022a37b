export default {
  'queue-choice.chosen': ['Shown below', '下方显示中'],
  'queue-choice.show': ['Show', '查看'],
};
