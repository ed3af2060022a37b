export default {
  'plot.as-table': ['As a table', '以表格显示'],
  'plot.summary': ['{name}: {last} now, from {lowest} to {highest}.', '{name}：当前 {last}，范围 {lowest} 至 {highest}。'],
  'plot.no-figures': ['{name}: no figures yet.', '{name}：暂无数据。'],
};
