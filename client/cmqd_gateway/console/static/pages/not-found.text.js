export default {
  'not-found.title': ['No such page', '页面不存在'],
  'not-found.text': ['The console has no page at this address.', '控制台没有这个地址的页面。'],
  'not-found.back': ['To the overview', '返回概览'],
};
